"""Write the trips of the stream `trips` to a table of Parquet files, each exactly once."""

from penstock.spark import session

spark = session()
records = (
    spark.readStream.format("penstock")
    .option("url", "http://guest:guest@localhost:15672/")  # the broker's HTTP port
    .option("subscribe", "trips")
    .option("startingOffsets", "earliest")
    .load()
)
trips = records.selectExpr(
    "from_json(cast(value as string), 'day INT, carrier STRING, delay INT') as trip"
).select("trip.*")
query = (
    trips.writeStream.format("parquet")
    .option("checkpointLocation", "state/trips")
    .trigger(availableNow=True)  # all that is there, then end
    .start("lake/trips")
)
query.awaitTermination()
spark.read.parquet("lake/trips").orderBy("day").show()
