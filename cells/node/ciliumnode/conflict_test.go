package ciliumnode

import (
	"fmt"
	"net/http"
	"net/netip"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/waggle-net/waggle/pkg/agentconfig"
	"github.com/waggle-net/waggle/pkg/kubernetes/ciliumv2"
	"github.com/waggle-net/waggle/pkg/kubernetes/kubeapi"
	"github.com/waggle-net/waggle/pkg/kubernetes/kubeapi/kubetest"
	"github.com/waggle-net/waggle/pkg/tables/k8s"
	"github.com/waggle-net/waggle/pkg/tables/localnode"
	"github.com/waggle-net/waggle/pkg/tables/nodeupdates"
)

// writer is an agent with the node name "one" on a machine of its own.
type writer struct {
	*controller
	want wanted
}

func newWriter(client *kubeapi.Client, host, addr string) *writer {
	m := machine{id: "id-" + host, bootID: "boot-" + host, host: host}
	return &writer{&controller{params: params{Client: client, Agent: agentconfig.Agent{NodeName: "one"}, Config: DefaultConfig}, machine: m}, wanted{machine: m,
		node: &k8s.Node{Name: "one", UID: "u"}, local: &localnode.LocalNode{IPv4: localnode.Family{NodeIP: netip.MustParseAddr(addr)}}}}
}

func (w *writer) pass(t *testing.T) error { return w.write(t.Context(), w.want, &nodeupdates.Update{}) }

// TestConflict_TwoMachinesWithOneName has two agents that compare their CiliumNode each second, more often than changes or failures trigger a comparison.
func TestConflict_TwoMachinesWithOneName(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := kubetest.New(t, kubetest.InMemory())
		var writes atomic.Int64
		s.Fault(func(r *http.Request) (int, string) {
			if r.Method == http.MethodPatch || r.Method == http.MethodPost {
				writes.Add(1)
			}
			return 0, ""
		})
		a, b := newWriter(s.Client(t), "alpha", "192.0.2.1"), newWriter(s.Client(t), "beta", "192.0.2.2")
		if err := a.pass(t); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Hour)
		both := func(d time.Duration) (errs [2]error) {
			for range int(d / time.Second) {
				errs = [2]error{a.pass(t), b.pass(t)}
				time.Sleep(time.Second)
			}
			return errs
		}
		wantConflict := func(when string, errs [2]error) {
			t.Helper()
			for i, other := range []string{"host beta (192.0.2.2)", "host alpha (192.0.2.1)"} {
				if errs[i] == nil || !strings.Contains(errs[i].Error(), other) || !strings.Contains(errs[i].Error(), "--node-name") {
					t.Errorf("%s: agent %d says %v, want that the other one runs on %s", when, i, errs[i], other)
				}
			}
		}
		wantConflict("after two minutes", both(2*yieldFor))
		before := writes.Load()
		wantConflict("after an hour", both(time.Hour))
		if n, most := writes.Load()-before, int64(2*time.Hour/yieldFor); n > most {
			t.Errorf("%d writes in an hour, want at most %d", n, most)
		}

		// One agent has stopped: the other one recovers.
		deadline := time.Now().Add(yieldFor + calm + 2*time.Second)
		for a.pass(t) != nil {
			if time.Now().After(deadline) {
				t.Fatalf("still: %v", a.pass(t))
			}
			time.Sleep(time.Second)
		}
		live := &ciliumv2.CiliumNode{}
		if s.Get(kubeapi.CiliumNodes, "", "one", live); live.Annotations[machineAnnotation] != "id-alpha alpha 192.0.2.1" || live.Spec.BootID != "boot-alpha" {
			t.Errorf("the CiliumNode is of %v, boot %s", live.Annotations, live.Spec.BootID)
		}
	})
}

// TestConflict_AddressesKnownLater has an agent on another machine that writes before it knows its addresses.
func TestConflict_AddressesKnownLater(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := kubetest.New(t, kubetest.InMemory())
		a, b := newWriter(s.Client(t), "alpha", "192.0.2.1"), newWriter(s.Client(t), "beta", "192.0.2.2")
		addresses := b.want.local
		b.want.local = &localnode.LocalNode{}
		for range named {
			for _, w := range []*writer{a, b} {
				_ = w.pass(t)
			}
		}
		if err := a.pass(t); err == nil || !strings.Contains(err.Error(), "host beta.") {
			t.Errorf("without addresses: %v", err)
		}
		b.want.local = addresses
		_ = b.pass(t)
		if err := a.pass(t); err == nil || !strings.Contains(err.Error(), "host beta (192.0.2.2)") {
			t.Errorf("with addresses: %v", err)
		}
	})
}

// TestConflict_OrdinaryEvents_NoConflict checks that after each event, and three hours later, the object has the desired state of the running agent.
func TestConflict_OrdinaryEvents_NoConflict(t *testing.T) {
	t.Parallel()
	old := func(n *ciliumv2.CiliumNode) { // as an agent version without the annotation writes it
		delete(n.Annotations, machineAnnotation)
	}
	for name, event := range map[string]func(t *testing.T, s *kubetest.Server, edit func(func(*ciliumv2.CiliumNode)), a *writer) *writer{
		"the agent restarts": func(t *testing.T, s *kubetest.Server, _ func(func(*ciliumv2.CiliumNode)), _ *writer) *writer {
			return newWriter(s.Client(t), "alpha", "192.0.2.1")
		},
		"the machine reboots": func(t *testing.T, s *kubetest.Server, _ func(func(*ciliumv2.CiliumNode)), _ *writer) *writer {
			a := newWriter(s.Client(t), "alpha", "192.0.2.1")
			a.machine.id, a.machine.bootID = "id-next", "boot-next"
			a.want.machine = a.machine
			return a
		},
		"the machine is replaced while the old one still runs": func(t *testing.T, s *kubetest.Server, _ func(func(*ciliumv2.CiliumNode)), a *writer) *writer {
			next := newWriter(s.Client(t), "beta", "192.0.2.2")
			next.want.node = &k8s.Node{Name: "one", UID: "next"}
			for _, w := range []*writer{next, a, next} {
				if err := w.pass(t); err != nil {
					t.Error(err)
				}
			}
			return next
		},
		"the address changes": func(_ *testing.T, _ *kubetest.Server, _ func(func(*ciliumv2.CiliumNode)), a *writer) *writer {
			a.want.local = &localnode.LocalNode{IPv4: localnode.Family{NodeIP: netip.MustParseAddr("192.0.2.7")}}
			return a
		},
		"the API server is restored to a state of the previous boot": func(_ *testing.T, _ *kubetest.Server, edit func(func(*ciliumv2.CiliumNode)), a *writer) *writer {
			edit(func(n *ciliumv2.CiliumNode) {
				n.Annotations[machineAnnotation], n.Spec.BootID = "id-past alpha 192.0.2.1", "boot-past"
			})
			return a
		},
		"the object is deleted": func(_ *testing.T, s *kubetest.Server, _ func(func(*ciliumv2.CiliumNode)), a *writer) *writer {
			s.Remove(kubeapi.CiliumNodes, "", "one")
			return a
		},
		"an older version ran meanwhile": func(t *testing.T, s *kubetest.Server, edit func(func(*ciliumv2.CiliumNode)), _ *writer) *writer {
			edit(old)
			return newWriter(s.Client(t), "alpha", "192.0.2.1")
		},
		"the annotation is removed again and again": func(t *testing.T, _ *kubetest.Server, edit func(func(*ciliumv2.CiliumNode)), a *writer) *writer {
			for range 5 {
				edit(old)
				if err := a.pass(t); err != nil {
					t.Error(err)
				}
			}
			return a
		},
		"two writes cross": func(t *testing.T, s *kubetest.Server, edit func(func(*ciliumv2.CiliumNode)), a *writer) *writer {
			var done atomic.Bool
			s.Fault(func(r *http.Request) (int, string) {
				if r.Method == http.MethodPatch && done.CompareAndSwap(false, true) {
					edit(func(n *ciliumv2.CiliumNode) { n.Labels["theirs"] = "kept" })
				}
				return 0, ""
			})
			for i := range 5 {
				a.want.local = &localnode.LocalNode{IPv4: localnode.Family{NodeIP: netip.MustParseAddr(fmt.Sprint("192.0.2.", 10+i))}}
				if err := a.pass(t); (err != nil) != (i == 0) { // the server rejects the first write, because the object has changed
					t.Errorf("write %d: %v", i, err)
				}
			}
			return a
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				s := kubetest.New(t, kubetest.InMemory())
				edit := func(change func(*ciliumv2.CiliumNode)) {
					n := &ciliumv2.CiliumNode{}
					s.Get(kubeapi.CiliumNodes, "", "one", n)
					change(n)
					s.Put(n)
				}
				a := newWriter(s.Client(t), "alpha", "192.0.2.1")
				if err := a.pass(t); err != nil {
					t.Fatal(err)
				}
				a = event(t, s, edit, a)
				for range 3 {
					if err := a.pass(t); err != nil {
						t.Error(err)
					}
					live := &ciliumv2.CiliumNode{}
					if s.Get(kubeapi.CiliumNodes, "", "one", live); len(a.want.changes(live)) > 0 {
						t.Errorf("still to write: %v", a.want.changes(live))
					}
					time.Sleep(time.Hour)
				}
			})
		})
	}
}

// TestConflict_WithAnOlderVersion has an agent on another machine that does not write the annotation.
func TestConflict_WithAnOlderVersion(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := kubetest.New(t, kubetest.InMemory())
		a := newWriter(s.Client(t), "alpha", "192.0.2.1")
		var err error
		for range named {
			if err = a.pass(t); err != nil {
				t.Errorf("before it is sure: %v", err)
			}
			n := &ciliumv2.CiliumNode{}
			s.Get(kubeapi.CiliumNodes, "", "one", n)
			n.Spec.BootID, n.Spec.Addresses = "boot-beta", []ciliumv2.NodeAddress{{Type: ciliumv2.CiliumInternalIP, IP: "10.9.0.1"}}
			s.Put(n)
		}
		if err = a.pass(t); err == nil || !strings.Contains(err.Error(), "10.9.0.1") {
			t.Errorf("said %v", err)
		}
	})
}

// TestThisMachine: a restarted agent is on the same machine; another boot is another machine.
func TestThisMachine(t *testing.T) {
	t.Parallel()
	one, again, other := thisMachine(procfs(t)), thisMachine(procfs(t)), thisMachine("/proc")
	if one != again || one.id == "" || one.id == other.id || one.host == "" {
		t.Errorf("%+v, again %+v, another boot %+v", one, again, other)
	}
}
