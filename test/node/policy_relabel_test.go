package node_test

import (
	"fmt"
	"maps"
	"net"
	"sync"
	"testing"
	"time"
)

// Labels of pods and of a namespace change under traffic. Peers that are allowed under the old and the new labels lose no packet; peers that are denied under
// both never pass. A peer that is no longer allowed is cut off on established connections, and can use them again when it is allowed again.
func TestPrivilegedPolicy_LabelsChangeUnderTraffic(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.apply(t, networkPolicy("x", selectA+"ingress: [{from: [{podSelector: {matchLabels: {tier: back}}}, {namespaceSelector: {matchLabels: {team: w}}}]}]"))
	deniedPeer := w.knock(t, "z/a", "x/a")
	loyal := w.talk(t, [2]string{"x/b", "x/a"}, [2]string{"z/liar", "z/a"})
	var leavers []*leaver
	for i, family := range families {
		for _, protocol := range []string{"udp", "tcp"} {
			server, done := echoServer(t, protocol, w.party("x/a"), w.party("x/a").addrs[i])
			defer done()
			leavers = append(leavers, &leaver{name: protocol + " " + family.name, conn: connect(t, w.party("w/a"), protocol, server)})
		}
	}
	// all checks each leaver concurrently until f returns true for it.
	all := func(what string, f func(*leaver) bool) {
		t.Helper()
		var asking sync.WaitGroup
		for _, l := range leavers {
			asking.Go(func() {
				for deadline := time.Now().Add(awaitFor); !f(l); {
					if time.Now().After(deadline) {
						t.Errorf("%s: %s is not in the expected state", what, l.name)
						return
					}
				}
			})
		}
		asking.Wait()
	}
	all("at first", (*leaver).heard)
	for round := range 3 {
		// x/b gets another label, and so another identity, but keeps the label tier.
		pods := maps.Clone(policyPods)
		pods["x/b"] = fmt.Sprintf("labels: {app: b, tier: back, round: 'r%d'}}, spec: {containers: [{name: c}]}", round)
		w.write(t, "pods.yaml", podManifests(pods))
		// The namespace of the leaver gets another team: its connection is cut.
		w.write(t, "namespaces.yaml", namespaceManifests(map[string]string{"w": "team: none"}))
		all("without the label", func(l *leaver) bool {
			for range 3 { // one miss may be due to a busy machine
				if l.heard() {
					return false
				}
			}
			return true
		})
		w.write(t, "namespaces.yaml", namespaceManifests(nil))
		all("with the label again", (*leaver).heard)
	}
	deniedPeer.unheard(t)
	undisturbed(t, loyal)
}

// leaver is a connection that a policy denies and later allows again.
type leaver struct {
	name string
	conn net.Conn
}

// heard reports whether an echo arrives.
func (l *leaver) heard() bool { return echoes(l.conn, 150*time.Millisecond) == nil }
