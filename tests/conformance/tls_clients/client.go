// amqp091-go over TLS: HOST PORT CA. Publishes 100 messages with confirms, and gets them back.
package main

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"log"
	"net"
	"os"

	amqp "github.com/rabbitmq/amqp091-go"
)

func must[T any](value T, err error) T {
	if err != nil {
		log.Fatal(err)
	}
	return value
}

func main() {
	host, port, ca := os.Args[1], os.Args[2], os.Args[3]
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(must(os.ReadFile(ca)))
	url := "amqps://guest:guest@" + net.JoinHostPort(host, port) + "/"
	connection := must(amqp.DialTLS(url, &tls.Config{RootCAs: roots, ServerName: host}))
	channel := must(connection.Channel())
	must(0, channel.Confirm(false))
	queue := must(channel.QueueDeclare("", false, false, true, false, nil))
	for i := 0; i < 100; i++ {
		confirm := must(channel.PublishWithDeferredConfirmWithContext(
			context.Background(), "", queue.Name, false, false,
			amqp.Publishing{Body: []byte(fmt.Sprint("m", i)), DeliveryMode: amqp.Persistent},
		))
		if !confirm.Wait() {
			log.Fatal("a publish was refused")
		}
	}
	deliveries := must(channel.Consume(queue.Name, "", false, false, false, false, nil))
	for i := 0; i < 100; i++ {
		delivery := <-deliveries
		if string(delivery.Body) != fmt.Sprint("m", i) {
			log.Fatalf("%d: %s", i, delivery.Body)
		}
		must(0, delivery.Ack(false))
	}
	must(0, connection.Close())
	fmt.Println("100 messages")
}
