// Package services_test tests Waggle's Services on a real Kubernetes: kubelet, controllers and probes add and remove servers, and no connection may fail
// meanwhile.
package services_test

import (
	"testing"

	"github.com/waggle-net/waggle/test/kube"
)

func TestMain(m *testing.M) { kube.Main(m) }
