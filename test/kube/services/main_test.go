// Package services_test holds Waggle's Services to what programs of a real Kubernetes rely on: kubelet, controllers and probes
// decide when servers come and go, and nothing may be lost meanwhile.
package services_test

import (
	"testing"

	"github.com/waggle-net/waggle/test/kube"
)

func TestMain(m *testing.M) { kube.Main(m) }
