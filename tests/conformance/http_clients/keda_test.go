package scalers

import (
	"context"
	"os"
	"testing"

	"github.com/kedacore/keda/v2/pkg/scalers/scalersconfig"
)

// A queue `jobs` with three messages is there; see run.py.
func TestLiveBroker(t *testing.T) {
	for _, wanted := range []struct {
		given    map[string]string
		messages float64
		fails    bool
	}{
		{map[string]string{"queueName": "jobs"}, 3, false},
		{map[string]string{"queueName": "jobs", "excludeUnacknowledged": "true"}, 3, false},
		{map[string]string{"queueName": "^jo.*$", "useRegex": "true"}, 3, false},
		{map[string]string{"queueName": "^jo.*$", "useRegex": "true", "operation": "max"}, 3, false},
		{map[string]string{"queueName": "none"}, 0, true},
	} {
		given := map[string]string{
			"host": os.Getenv("BROKER"), "protocol": "http", "mode": "QueueLength", "value": "5",
		}
		for name, value := range wanted.given {
			given[name] = value
		}
		scaler, err := NewRabbitMQScaler(&scalersconfig.ScalerConfig{
			TriggerMetadata: given, GlobalHTTPTimeout: 10_000_000_000,
		})
		if err != nil {
			t.Fatal(wanted.given, err)
		}
		found, isActive, err := scaler.GetMetricsAndActivity(context.Background(), "m")
		if wanted.fails {
			if err == nil {
				t.Error(wanted.given, "no error for a queue that is not there")
			}
			continue
		}
		if err != nil {
			t.Fatal(wanted.given, err)
		}
		if value := found[0].Value.AsApproximateFloat64(); value != wanted.messages || !isActive {
			t.Error(wanted.given, value, isActive)
		}
	}
}
