// amqplib over TLS: HOST PORT CA. Publishes 100 messages with confirms, and gets them back.
import { readFileSync } from "node:fs";
import amqp from "amqplib";

const [host, port, ca] = process.argv.slice(2);
const connection = await amqp.connect(
  { protocol: "amqps", hostname: host, port: Number(port), username: "guest", password: "guest" },
  { ca: [readFileSync(ca)], servername: host },
);
const channel = await connection.createConfirmChannel();
const { queue } = await channel.assertQueue("", { exclusive: true });
for (let i = 0; i < 100; i++) channel.sendToQueue(queue, Buffer.from(`m${i}`), { persistent: true });
await channel.waitForConfirms();
let n = 0;
await new Promise((resolve, reject) => {
  channel.consume(queue, (message) => {
    if (message.content.toString() !== `m${n}`) reject(new Error(`${n}: ${message.content}`));
    channel.ack(message);
    if (++n === 100) resolve();
  });
});
await connection.close();
console.log("100 messages");
