package node_test

import (
	"fmt"
	"maps"
	"net"
	"testing"
	"time"
)

// Labels of pods and of a namespace change under traffic. Who is allowed under the old and the new ones loses nothing; who is
// denied under both never passes; who is allowed no more is cut at once, in the middle of what it has begun; and who is allowed again
// goes on.
func TestPrivilegedPolicy_LabelsChangeUnderTraffic(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.apply(t, networkPolicy("x", selectA+"ingress: [{from: [{podSelector: {matchLabels: {tier: back}}}, {namespaceSelector: {matchLabels: {team: w}}}]}]"))
	stranger := w.knock(t, "z/a", "x/a")
	loyal := w.talk(t, [2]string{"x/b", "x/a"}, [2]string{"z/liar", "z/a"})
	type leaver struct {
		name string
		conn net.Conn
	}
	var leavers []leaver
	for i, family := range families {
		for _, protocol := range []string{"udp", "tcp"} {
			server, done := echoServer(t, protocol, w.party("x/a"), w.party("x/a").addrs[i])
			defer done()
			leavers = append(leavers, leaver{protocol + " " + family.name, connect(t, w.party("w/a"), protocol, server)})
		}
	}
	within := func(what string, limit time.Duration, want bool) {
		t.Helper()
		deadline := time.Now().Add(limit)
		for _, l := range leavers {
			for {
				err := echoes(l.conn, 150*time.Millisecond)
				if (err == nil) == want {
					break
				}
				if time.Now().After(deadline) {
					t.Errorf("%s: %s: an echo comes: %t, want %t (%v)", what, l.name, err == nil, want, err)
					break
				}
			}
		}
	}
	within("at first", 5*time.Second, true)
	for round := range 3 {
		// x/b has another label, and so another identity, but is still of the tier.
		pods := maps.Clone(policyPods)
		pods["x/b"] = fmt.Sprintf("labels: {app: b, tier: back, round: 'r%d'}}, spec: {containers: [{name: c}]}", round)
		w.write(t, "pods.yaml", podManifests(pods))
		// The namespace of the leaver is another team's: it may not talk on.
		began := time.Now()
		w.write(t, "namespaces.yaml", namespaceManifests(map[string]string{"w": "team: none"}))
		within("without the label", 5*time.Second, false)
		if took := time.Since(began); took > 3*time.Second {
			t.Errorf("it took %v until nothing came through", took)
		}
		w.write(t, "namespaces.yaml", namespaceManifests(nil))
		within("with the label again", 10*time.Second, true)
	}
	stranger.unheard(t)
	undisturbed(t, loyal)
}
