package rabbitmq

import (
	"os"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/influxdata/telegraf/testutil"
)

// A queue `jobs` with three messages is there; see run.py.
func TestLiveBroker(t *testing.T) {
	plugin := &RabbitMQ{URL: os.Getenv("BROKER"), Log: testutil.Logger{}}
	require.NoError(t, plugin.Init())
	var found testutil.Accumulator
	require.NoError(t, found.GatherError(plugin.Gather))
	for _, name := range []string{"rabbitmq_overview", "rabbitmq_node", "rabbitmq_exchange"} {
		require.True(t, found.HasMeasurement(name), name)
	}
	for _, metric := range found.Metrics {
		if metric.Measurement == "rabbitmq_queue" && metric.Tags["queue"] == "jobs" {
			require.Equal(t, int64(3), metric.Fields["messages_ready"])
			return
		}
	}
	t.Fatal("no row of the queue jobs")
}
