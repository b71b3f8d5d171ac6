package node_test

import (
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/waggle-net/waggle/test/nodekit"
)

// The directory of manifests is missing while the agent runs, and later when it starts, like a directory that is mounted late. Policies stay enforced all the
// time, and no allowed packet is lost. A new pod on a node without known policies waits for them.
func TestPrivilegedPolicy_MissingManifests_StaysEnforced(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "--ipv4-range=10.244.1.0/24", "--ipv6-range=fd00:10:244:1::/64") // the Node is a manifest as well
	w.apply(t, networkPolicy("x", "podSelector: {matchExpressions: [{key: app, operator: In, values: [a, late]}]}, policyTypes: [Ingress], "+
		"ingress: [{from: [{podSelector: {matchLabels: {app: b}}}]}]"))
	w.write(t, "late.yaml", podManifests(map[string]string{"x/late": "labels: {app: late}}, spec: {containers: [{name: c}]}"}))
	deniedPeer := w.knock(t, "z/a", "x/a")
	friends := w.talk(t, [2]string{"x/b", "x/a"}, [2]string{"w/a", "w/b"})
	dir := w.ManifestsDir()
	if err := os.Rename(dir, dir+".away"); err != nil {
		t.Fatal(err)
	}
	awaitStatus(t, w.Node, "list manifests")
	if err := errors.Join(w.KillAgent(t.Context()), w.StartAgent()); err != nil {
		t.Fatal(err)
	}
	awaitStatus(t, w.Node, dir+" does not exist, but pods of the previous run do")

	late := newPod(t, w.Node, "x/late")
	attached, began := make(chan error, 1), time.Now()
	go func() { attached <- late.Attach(t.Context()) }()
	eventually(t, func() error {
		rows, err := w.Waggle(t.Context(), "db", "show", "endpoint-policies")
		if err == nil && !strings.Contains(rows, "none is known now") {
			err = fmt.Errorf("it is not said what the new pod waits for:\n%s", rows)
		}
		return err
	})
	released := time.Now()
	if err := os.Rename(dir+".away", dir); err != nil {
		t.Fatal(err)
	}
	if err := endOfADD(t.Context(), late, began, released, attached); err != nil { // ADD ends by itself
		t.Fatal(err)
	}
	for _, family := range families {
		addr := late.Addr(family.ipv6)
		if err := nodekit.PingBriefly(w.party("z/a"), addr, 56); err == nil {
			t.Errorf("%s: a denied peer reaches the new pod", family.name)
		}
		if err := nodekit.Ping(w.party("x/b"), addr, 56); err != nil {
			t.Errorf("%s: %v", family.name, err)
		}
	}
	deniedPeer.unheard(t)
	undisturbed(t, friends)
}
