// The Java client over TLS: HOST PORT CA. Publishes 100 messages with confirms, and gets them back.
import com.rabbitmq.client.Channel;
import com.rabbitmq.client.Connection;
import com.rabbitmq.client.ConnectionFactory;
import com.rabbitmq.client.GetResponse;
import com.rabbitmq.client.MessageProperties;
import java.io.FileInputStream;
import java.io.InputStream;
import java.security.KeyStore;
import java.security.cert.CertificateFactory;
import javax.net.ssl.SSLContext;
import javax.net.ssl.TrustManagerFactory;

public class Client {
    public static void main(String[] words) throws Exception {
        KeyStore store = KeyStore.getInstance(KeyStore.getDefaultType());
        store.load(null, null);
        try (InputStream ca = new FileInputStream(words[2])) {
            store.setCertificateEntry(
                    "ca", CertificateFactory.getInstance("X.509").generateCertificate(ca));
        }
        TrustManagerFactory trust =
                TrustManagerFactory.getInstance(TrustManagerFactory.getDefaultAlgorithm());
        trust.init(store);
        SSLContext context = SSLContext.getInstance("TLS");
        context.init(null, trust.getTrustManagers(), null);
        ConnectionFactory factory = new ConnectionFactory();
        factory.setHost(words[0]);
        factory.setPort(Integer.parseInt(words[1]));
        factory.useSslProtocol(context);
        factory.enableHostnameVerification();
        try (Connection connection = factory.newConnection()) {
            Channel channel = connection.createChannel();
            channel.confirmSelect();
            String queue = channel.queueDeclare().getQueue();
            for (int i = 0; i < 100; i++) {
                channel.basicPublish(
                        "", queue, MessageProperties.PERSISTENT_BASIC, ("m" + i).getBytes());
            }
            channel.waitForConfirmsOrDie();
            for (int i = 0; i < 100; i++) {
                GetResponse message = channel.basicGet(queue, false);
                if (!new String(message.getBody()).equals("m" + i)) {
                    throw new IllegalStateException(i + ": " + new String(message.getBody()));
                }
                channel.basicAck(message.getEnvelope().getDeliveryTag(), false);
            }
        }
        System.out.println("100 messages");
    }
}
