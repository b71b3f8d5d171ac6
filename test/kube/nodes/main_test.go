// Package nodes_test holds Waggle's tunnel to what pods of a real Kubernetes of three nodes rely on: nodes go and come back and agents are replaced, and
// neither a connection is lost nor a denied one comes about.
package nodes_test

import (
	"testing"

	"github.com/waggle-net/waggle/test/kube"
)

func TestMain(m *testing.M) { kube.Main(m) }
