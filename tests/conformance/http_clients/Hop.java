// Calls the methods of RabbitMQ's Java client of the HTTP API (hop), and decodes every answer:
//
//     java -cp 'jars/*:.' Hop http://guest:guest@localhost:15672/api/ amqp://guest:guest@localhost:5672
//
// Prints "NAME: ok" or "NAME: why not" of each, and "N of N methods" at the end.

import com.rabbitmq.client.Channel;
import com.rabbitmq.client.Connection;
import com.rabbitmq.client.ConnectionFactory;
import com.rabbitmq.http.client.Client;
import com.rabbitmq.http.client.ClientParameters;
import com.rabbitmq.http.client.GetAckMode;
import com.rabbitmq.http.client.GetEncoding;
import com.rabbitmq.http.client.HttpClientException;
import com.rabbitmq.http.client.domain.*;
import java.util.Collection;
import java.util.List;
import java.util.Map;
import java.util.Objects;
import java.util.concurrent.Callable;

public class Hop {
    private static int calls = 0;
    private static int wrong = 0;

    /** Run one method; expected: what it is to return, or a type that it is to be of. */
    private static void check(String name, Object expected, Callable<Object> body) {
        calls++;
        Object found;
        try {
            found = body.call();
        } catch (Exception error) {
            found = error;
        }
        boolean isRight = expected instanceof Class<?> type
            ? type.isInstance(found)
            : Objects.equals(expected, found);
        wrong += isRight ? 0 : 1;
        System.out.println(name + ": " + (isRight ? "ok" : "expected " + expected + ", found " + found));
    }

    private interface Step {
        void run() throws Exception;
    }

    private static void check(String name, Step body) {
        check(name, "done", () -> {
            body.run();
            return "done";
        });
    }

    private static Object one(Collection<?> rows) {
        return rows.isEmpty() ? "an empty list" : rows.iterator().next();
    }

    public static void main(String[] words) throws Exception {
        Client c = new Client(new ClientParameters().url(words[0]).username("guest").password("guest"));
        ConnectionFactory factory = new ConnectionFactory();
        factory.setUri(words[1]);
        String v = "/";
        String shop = "shop/a b+c";

        check("createVhost", () -> c.createVhost(shop, false, "sells", "a", "b"));
        check("getVhost", "sells", () -> c.getVhost(shop).getDescription());
        check("getVhosts", true, () -> c.getVhosts().stream().anyMatch(one -> one.getName().equals(shop)));
        check("getVhost of none", null, () -> c.getVhost("none"));
        check("createUser", () -> c.createUser("ann", "pw".toCharArray(), List.of("policymaker", "management")));
        check("getUser", List.of("policymaker", "management"), () -> c.getUser("ann").getTags());
        check("updateUser", () -> c.updateUser("ann", "pw2".toCharArray(), List.of("monitoring")));
        check("createUserWithPasswordHash", () -> c.createUserWithPasswordHash(
            "bob", "8bEa6tcwJfTJGzmZH1sLYEcBmkLcHXDDRm5Bp3BtVPqJFXcT".toCharArray(), List.of()));
        check("getUsers", 3, () -> c.getUsers().size());
        check("updatePermissions", () -> c.updatePermissions(shop, "ann", new UserPermissions(".*", "a", "b")));
        check("updatePermissions of guest", () -> c.updatePermissions(shop, "guest", new UserPermissions(".*", ".*", ".*")));
        check("getPermissions of one", "a", () -> c.getPermissions(shop, "ann").getWrite());
        check("getPermissionsIn", 2, () -> c.getPermissionsIn(shop).size());
        check("getPermissionsOf", 1, () -> c.getPermissionsOf("ann").size());
        check("getPermissions", UserPermissions.class, () -> one(c.getPermissions()));
        check("updateTopicPermissions", () -> c.updateTopicPermissions(shop, "ann", new TopicPermissions("amq.topic", ".*", "w")));
        check("getTopicPermissions of one", "w", () -> c.getTopicPermissions(shop, "ann").get(0).getWrite());
        check("getTopicPermissionsIn", 1, () -> c.getTopicPermissionsIn(shop).size());
        check("getTopicPermissionsOf", 1, () -> c.getTopicPermissionsOf("ann").size());
        check("getTopicPermissions", 1, () -> c.getTopicPermissions().size());
        check("clearTopicPermissions", () -> c.clearTopicPermissions(shop, "ann"));
        check("limitMaxNumberOfConnections", () -> c.limitMaxNumberOfConnections(shop, 100));
        check("limitMaxNumberOfQueues", () -> c.limitMaxNumberOfQueues(shop, 200));
        check("getVhostLimits of one", 200, () -> c.getVhostLimits(shop).getMaxQueues());
        check("getVhostLimits", 100, () -> c.getVhostLimits().get(0).getMaxConnections());
        check("clearMaxConnectionsLimit", () -> c.clearMaxConnectionsLimit(shop));
        check("clearMaxQueuesLimit", () -> c.clearMaxQueuesLimit(shop));
        check("getVhostLimits of none", -1, () -> c.getVhostLimits(shop).getMaxQueues());

        check("declareExchange", () -> c.declareExchange(v, "x", new ExchangeInfo("topic", true, false)));
        check("declareExchange y", () -> c.declareExchange(
            v, "y", new ExchangeInfo("fanout", false, true, true, Map.of("alternate-exchange", "x"))));
        check("getExchange", "topic", () -> c.getExchange(v, "x").getType());
        check("getExchange with arguments", "x", () -> c.getExchange(v, "y").getArguments().get("alternate-exchange"));
        check("getExchange of none", null, () -> c.getExchange(v, "none"));
        check("getExchanges", ExchangeInfo.class, () -> one(c.getExchanges()));
        check("getExchanges of a vhost", ExchangeInfo.class, () -> one(c.getExchanges(v)));
        check("getExchanges by page", 3, () -> c.getExchanges(
            v, new QueryParameters().pagination().pageSize(3).query()).getItems().length);
        check("declareQueue", () -> c.declareQueue(v, "q", new QueueInfo(true, false, false, Map.of("x-max-length", 10))));
        check("declareQueue of quorum", () -> c.declareQueue(
            v, "quorum", new QueueInfo(true, false, false, Map.of("x-queue-type", "quorum"))));
        check("declareQueue otherwise", HttpClientException.class, () -> {
            c.declareQueue(v, "q", new QueueInfo(true, false, false));
            return null;
        });
        check("bindQueue", () -> c.bindQueue(v, "q", "x", "a/b #"));
        check("bindQueue with arguments", () -> c.bindQueue(v, "q", "x", "k", Map.of("n", 1)));
        check("bindExchange", () -> c.bindExchange(v, "y", "x", "k"));
        check("getBindings", BindingInfo.class, () -> one(c.getBindings()));
        check("getBindings of a vhost", 5, () -> c.getBindings(v).size());
        check("getBindingsBySource", 3, () -> c.getBindingsBySource(v, "x").size());
        check("getExchangeBindingsByDestination", 1, () -> c.getExchangeBindingsByDestination(v, "y").size());
        check("getQueueBindings", 3, () -> c.getQueueBindings(v, "q").size());
        check("getQueueBindingsBetween", 2, () -> c.getQueueBindingsBetween(v, "x", "q").size());
        check("getExchangeBindingsBetween", "k", () -> c.getExchangeBindingsBetween(v, "x", "y").get(0).getRoutingKey());
        check("getBindingsBySource of the default", 2, () -> c.getBindingsBySource(v, "").size());

        check("publish", true, () -> c.publish(v, "x", "a/b #", new OutboundMessage().payload("h\u00e9").utf8Encoded()
            .properties(Map.of("content_type", "text/plain", "headers", Map.of("n", 1)))));
        check("publish base64", true, () -> c.publish(v, "amq.default", "q", new OutboundMessage().payload("AAE=").base64Encoded()));
        check("publish to nobody", false, () -> c.publish(v, "x", "none", new OutboundMessage().payload("a").utf8Encoded()));
        check("get", "h\u00e9", () -> c.get(v, "q").getPayload());
        check("get two", 2, () -> c.get(v, "q", 5, GetAckMode.NACK_REQUEUE_TRUE, GetEncoding.AUTO, 50_000).size());
        check("get in base64", "base64", () -> c.get(
            v, "q", 5, GetAckMode.NACK_REQUEUE_TRUE, GetEncoding.BASE64).get(0).getPayloadEncoding());
        check("getQueue", 2L, () -> c.getQueue(v, "q").getTotalMessages());
        check("getQueue with samples", true, () -> !c.getQueue(
            v, "q", new DetailsParameters().lengths(60, 5).messageRates(60, 5)).getMessagesDetails().getSamples().isEmpty());
        check("getQueue of none", null, () -> c.getQueue(v, "none"));
        check("getQueues", 2, () -> c.getQueues().size());
        check("getQueues with samples", true, () -> !c.getQueues(
            new DetailsParameters().lengths(60, 5)).get(0).getMessagesDetails().getSamples().isEmpty());
        check("getQueues of a vhost", 2, () -> c.getQueues(v).size());
        check("getQueues by page", 1, () -> c.getQueues(
            v, new QueryParameters().name("^q$", true).pagination().pageSize(10).query()).getFilteredCount());
        check("getQueues with columns", null, () -> c.getQueues(new QueryParameters().columns().add("name").sort("name")
            .sortReverse(true).query().pagination().pageSize(10).query()).getItemsAsList().get(0).getVhost());
        check("purgeQueue", () -> c.purgeQueue(v, "q"));

        check("declarePolicy", () -> c.declarePolicy(v, "p", new PolicyInfo("^q$", 1, "queues", Map.of("max-length", 5))));
        check("declareOperatorPolicy", () -> c.declareOperatorPolicy(
            v, "o", new PolicyInfo("^q$", 1, "queues", Map.of("expires", 1800000))));
        check("getPolicies", "^q$", () -> c.getPolicies().get(0).getPattern());
        check("getPolicies of a vhost", 1, () -> c.getPolicies(v).size());
        check("getOperatorPolicies", 1, () -> c.getOperatorPolicies().size());
        check("getOperatorPolicies of a vhost", 1800000, () -> c.getOperatorPolicies(v).get(0).getDefinition().get("expires"));
        check("the policy of a queue", "p", () -> c.getQueue(v, "q").getPolicy());
        check("deletePolicy", () -> c.deletePolicy(v, "p"));
        check("deleteOperatorPolicy", () -> c.deleteOperatorPolicy(v, "o"));

        try (Connection connection = factory.newConnection("hop"); Channel channel = connection.createChannel()) {
            channel.basicQos(7);
            channel.confirmSelect();
            channel.basicConsume("q", false, "tag", (tag, message) -> { }, tag -> { });
            channel.basicPublish("", "q", null, new byte[100]);
            channel.waitForConfirms();
            for (int n = 0; n < 200 && c.getConnections().isEmpty(); n++) Thread.sleep(50);
            String name = c.getConnections().get(0).getName();
            check("getConnections", "guest", () -> c.getConnections().get(0).getUser());
            check("getConnections by page", 1, () -> c.getConnections(
                new QueryParameters().pagination().pageSize(5).query()).getItemsAsList().size());
            check("getConnection", "hop", () -> c.getConnection(name).getClientProperties().getConnectionName());
            check("getConnectionsOfUser", UserConnectionInfo.class, () -> one(c.getConnectionsOfUser("guest")));
            check("getChannels", 7, () -> c.getChannels().get(0).getPrefetchCount());
            check("getChannels by page", 1, () -> c.getChannels(
                new QueryParameters().pagination().pageSize(5).query()).getItemsAsList().size());
            check("getChannels of a connection", 1, () -> c.getChannels(name).size());
            check("getChannel", 1, () -> c.getChannel(c.getChannels().get(0).getName()).getConsumerCount());
            check("getConsumers", "tag", () -> c.getConsumers().get(0).getConsumerTag());
            check("getConsumers of a vhost", "q", () -> c.getConsumers(v).get(0).getQueueDetails().getName());
            check("the consumers of a queue", 1, () -> c.getQueue(v, "q").getConsumerDetails().size());
            check("closeConnection with a reason", () -> c.closeConnection(name, "because"));
            check("the reason", true, () -> {
                for (int n = 0; n < 200 && connection.isOpen(); n++) Thread.sleep(50);
                return connection.getCloseReason().getMessage().contains("because");
            });
        } catch (com.rabbitmq.client.AlreadyClosedException closed) {
            // it was closed over HTTP
        }
        check("closeAllConnectionsOfUser", "closed", () -> {
            try (Connection connection = factory.newConnection("again")) {
                for (int n = 0; n < 200 && c.getConnectionsOfUser("guest").isEmpty(); n++) Thread.sleep(50);
                c.closeAllConnectionsOfUser("guest");
                for (int n = 0; n < 200 && connection.isOpen(); n++) Thread.sleep(50);
                return connection.isOpen() ? "open" : "closed";
            } catch (com.rabbitmq.client.AlreadyClosedException closed) {
                return "closed";
            }
        });
        check("getOverview", true, () -> c.getOverview().getObjectTotals().getQueues() >= 2);
        check("getOverview.getMessageStats", true, () -> c.getOverview().getMessageStats().getBasicPublish() > 0);
        check("whoAmI", List.of("administrator"), () -> c.whoAmI().getTags());
        check("getNodes", NodeInfo.class, () -> one(c.getNodes()));
        check("getNode", true, () -> c.getNode(c.getNodes().get(0).getName()).isRunning());
        check("alivenessTest", true, () -> c.alivenessTest(v));
        check("setClusterName", () -> c.setClusterName("lab"));
        check("getClusterName", "lab", () -> c.getClusterName().getName());
        check("getExtensions", List.class, c::getExtensions);
        check("getDefinitions", true, () -> c.getDefinitions().getQueues().stream().anyMatch(q -> q.getName().equals("q")));
        check("getDefinitions.getExchanges", true, () -> c.getDefinitions().getExchanges().stream().anyMatch(
            x -> x.getName().equals("x")));

        ShovelDetails details = new ShovelDetails("amqp://", "amqp://", 30, true, null);
        details.setSourceQueue("q");
        details.setDestinationQueue("quorum");
        check("declareShovel", () -> c.declareShovel(v, new ShovelInfo("s", details)));
        check("getShovels", "s", () -> c.getShovels().get(0).getName());
        check("getShovels of a vhost", "q", () -> c.getShovels(v).get(0).getDetails().getSourceQueue());
        check("getShovelsStatus", List.class, c::getShovelsStatus);
        check("getShovelsStatus of a vhost", List.class, () -> c.getShovelsStatus(v));
        check("deleteShovel", () -> c.deleteShovel(v, "s"));
        check("declareUpstream", () -> c.declareUpstream(v, "u", new UpstreamDetails().setUri("amqp://a").setMaxHops(2)));
        check("getUpstreams", "amqp://a", () -> c.getUpstreams().get(0).getValue().getUri());
        check("getUpstreams of a vhost", 2, () -> c.getUpstreams(v).get(0).getValue().getMaxHops());
        check("declareUpstreamSet", () -> c.declareUpstreamSet(v, "set", List.of(new UpstreamSetDetails().setUpstream("u"))));
        check("getUpstreamSets", "u", () -> c.getUpstreamSets().get(0).getValue().get(0).getUpstream());
        check("getUpstreamSets of a vhost", 1, () -> c.getUpstreamSets(v).size());
        check("deleteUpstreamSet", () -> c.deleteUpstreamSet(v, "set"));
        check("deleteUpstream", () -> c.deleteUpstream(v, "u"));
        check("setMqttPortToVhostMapping", () -> c.setMqttPortToVhostMapping(Map.of(1883, v)));
        check("getMqttPortToVhostMapping", v, () -> c.getMqttPortToVhostMapping().getValue().get(1883));
        check("deleteMqttPortToVhostMapping", () -> c.deleteMqttPortToVhostMapping());

        check("unbindQueue", () -> c.unbindQueue(v, "q", "x", "a/b #"));
        check("unbindExchange", () -> c.unbindExchange(v, "y", "x", "k"));
        check("what is left bound", 1, () -> c.getBindingsBySource(v, "x").size());
        check("deleteQueue if it is empty", HttpClientException.class, () -> {
            c.publish(v, "amq.default", "q", new OutboundMessage().payload("a").utf8Encoded());
            c.deleteQueue(v, "q", new DeleteQueueParameters(true, false));
            return null;
        });
        check("deleteQueue", () -> c.deleteQueue(v, "q"));
        check("deleteQueue of quorum", () -> c.deleteQueue(v, "quorum"));
        check("deleteExchange", () -> c.deleteExchange(v, "x"));
        check("clearPermissions", () -> c.clearPermissions(shop, "ann"));
        check("deleteUser", () -> c.deleteUser("ann"));
        check("deleteUser bob", () -> c.deleteUser("bob"));
        check("deleteVhost", () -> c.deleteVhost(shop));
        System.out.println((calls - wrong) + " of " + calls + " calls");
        System.exit(wrong == 0 ? 0 : 1);
    }
}
