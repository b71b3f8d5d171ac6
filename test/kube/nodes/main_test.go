// Package nodes_test tests Waggle's tunnel on a real Kubernetes with three nodes: nodes leave and join, agents are replaced, no connection may fail, and no
// denied connection may succeed.
package nodes_test

import (
	"testing"

	"github.com/waggle-net/waggle/test/kube"
)

func TestMain(m *testing.M) { kube.Main(m) }
