-- Made anew by each run, of all that is in the table by then.
CREATE MATERIALIZED VIEW delays AS
SELECT carrier, count(*) AS flights, avg(dep_delay) AS delay
FROM flights
GROUP BY carrier;
