package node_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"
)

// serviceGroup is a group of tests of services. It creates its services and pods on an empty fixture.
type serviceGroup struct {
	name string
	try  func(m *serviceFixture, t *testing.T, packets bool)
}

// TestPrivilegedService_Groups tests services on one node for each of the modes. The groups run one after the other, each on an empty fixture, so that the node
// and its agent are started only once.
func TestPrivilegedService_Groups(t *testing.T) {
	t.Parallel()
	both := []serviceGroup{
		{"ClusterIP", (*serviceFixture).clusterIP},
		{"EndpointsChangeUnderTraffic", (*serviceFixture).endpointsChangeUnderTraffic},
		{"SessionAffinity", (*serviceFixture).sessionAffinity},
		{"AffinityExpires", (*serviceFixture).affinitiesExpire},
		{"UnconnectedSockets", (*serviceFixture).unconnectedSockets},
		{"PortIsReused", (*serviceFixture).portIsReused},
		{"OnePortForServiceAndBackend", (*serviceFixture).onePortForServiceAndBackend},
		{"NodePort", (*serviceFixture).nodePort},
		{"LoadBalancerAndExternalIPs", (*serviceFixture).loadBalancerAndExternalIPs},
		{"BackendOnOtherNode", (*serviceFixture).backendOnOtherNode},
	}
	further := map[bool][]serviceGroup{
		false: {{"SandboxedPods", (*serviceFixture).sandboxedPods}, {"SourceRanges", (*serviceFixture).sourceRanges}, {"SourceRangesNarrow", (*serviceFixture).sourceRangesNarrow},
			{"RejectionsAreLimited", (*serviceFixture).rejectionsAreLimited}, {"HostPortFollowsThePod", (*serviceFixture).hostPortFollowsThePod}},
		true: {{"NodePortLocal", (*serviceFixture).nodePortLocal}, {"NoAnswerIsLostWhenEndpointsChange", (*serviceFixture).noAnswerIsLostWhenEndpointsChange}},
	}
	for _, mode := range modes {
		t.Run(mode.name, func(t *testing.T) {
			t.Parallel()
			m := newServiceFixture(t, mode.args...)
			m.routePublic(t)
			for _, groups := range [][]serviceGroup{both, further[mode.packets]} {
				for _, g := range groups {
					t.Run(g.name, func(t *testing.T) {
						defer m.empty(t)
						g.try(m, t, mode.packets)
					})
				}
			}
			t.Run("SourceSeenOutside", func(t *testing.T) { m.sourceOutside(t, false) }) // the last one, because the host outside gets a route to pods
		})
	}
}

// empty removes all services and pods, and waits until the datapath serves nothing.
func (m *serviceFixture) empty(t *testing.T) {
	t.Helper()
	for _, kind := range []string{"service", "slices", "pod"} {
		files, err := filepath.Glob(filepath.Join(m.ManifestsDir(), "*-"+kind+".yaml"))
		for _, file := range files {
			err = errors.Join(err, os.Remove(file))
		}
		if err != nil {
			t.Error(err)
		}
	}
	for name, pod := range m.pods {
		if err := pod.Detach(t.Context()); err != nil {
			t.Errorf("pod %s: %v", name, err)
		}
	}
	clear(m.pods)
	eventually(t, func() error {
		text, err := m.Waggle(t.Context(), "bpf", "lb", "list", "--frontends", "-o", "json")
		if err != nil {
			return err
		}
		var have struct{ Frontends []json.RawMessage }
		if err := json.Unmarshal([]byte(text), &have); err != nil {
			return err
		}
		if len(have.Frontends) > 0 {
			return fmt.Errorf("%d frontends are still served:\n%s", len(have.Frontends), text)
		}
		return nil
	})
}
