package ciliumendpoints

import (
	"context"
	"fmt"
	"net/http"
	"net/netip"
	"strings"
	"testing"
	"time"

	upstream "github.com/cilium/hive"
	"github.com/cilium/hive/cell"
	"github.com/cilium/hive/script"
	"github.com/cilium/statedb"
	"go.uber.org/goleak"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/waggle-net/waggle/cells/agent/driftledger"
	"github.com/waggle-net/waggle/pkg/agentconfig"
	"github.com/waggle-net/waggle/pkg/celltest"
	"github.com/waggle-net/waggle/pkg/kubernetes/ciliumv2"
	"github.com/waggle-net/waggle/pkg/kubernetes/kubeapi"
	"github.com/waggle-net/waggle/pkg/kubernetes/kubeapi/kubetest"
	"github.com/waggle-net/waggle/pkg/tables/cilium"
	"github.com/waggle-net/waggle/pkg/tables/endpoints"
	"github.com/waggle-net/waggle/pkg/tables/endpointstates"
	"github.com/waggle-net/waggle/pkg/tables/identities"
	"github.com/waggle-net/waggle/pkg/tables/k8s"
	"github.com/waggle-net/waggle/pkg/tables/localnode"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// cells returns the module under test, the tables of other cells, and an API server whose CiliumEndpoint objects are copied to cilium-endpoints.
func cells(t testing.TB, server *kubetest.Server) []cell.Cell {
	return []cell.Cell{Cell, driftledger.Cell, agentconfig.Cell,
		cell.Module("world", "All else",
			cell.Provide(
				endpoints.NewTable, statedb.RWTable[*endpoints.Endpoint].ToTable,
				identities.NewEndpointTable, statedb.RWTable[*identities.EndpointIdentity].ToTable,
				endpointstates.NewTable, statedb.RWTable[*endpointstates.EndpointState].ToTable,
				k8s.NewPodTable, statedb.RWTable[*k8s.Pod].ToTable,
				localnode.NewTable, statedb.RWTable[*localnode.LocalNode].ToTable,
				cilium.NewEndpointTable, statedb.RWTable[*cilium.Endpoint].ToTable,
				func() *kubeapi.Client { return server.Client(t) },
				func() upstream.ScriptCmdsOut { return commands(t, server) },
			),
			cell.Invoke(func(lifecycle cell.Lifecycle, db *statedb.DB, table statedb.RWTable[*cilium.Endpoint]) {
				run := mirror(t, server, db, table)
				lifecycle.Append(cell.Hook{OnStart: func(cell.HookContext) error { run(); return nil }})
			}),
		)}
}

func TestScripts(t *testing.T) {
	t.Parallel()
	celltest.RunVirtual(t, "testdata/*.txtar", func(t testing.TB) []cell.Cell { return cells(t, kubetest.New(t, kubetest.InMemory())) })
}

// mirror copies the server's objects to cilium-endpoints, like the cell k8s-tables. The table is not initialized at first; run starts the copying. It stops
// when the test ends.
func mirror(t testing.TB, server *kubetest.Server, db *statedb.DB, table statedb.RWTable[*cilium.Endpoint]) (run func()) {
	t.Helper()
	txn := db.WriteTxn(table)
	done := table.RegisterInitializer(txn, "mirror")
	txn.Commit()
	client := server.Client(t)
	return func() {
		ctx, cancel := context.WithCancel(context.Background())
		ended := make(chan struct{})
		t.Cleanup(func() { cancel(); <-ended })
		go follow(ctx, ended, client, db, table, done)
	}
}

func follow(ctx context.Context, ended chan<- struct{}, client *kubeapi.Client, db *statedb.DB,
	table statedb.RWTable[*cilium.Endpoint], done func(statedb.WriteTxn)) {
	defer close(ended)
	for ctx.Err() == nil {
		var list ciliumv2.CiliumEndpointList
		if client.List(ctx, kubeapi.CiliumEndpoints, "", metav1.ListOptions{}, &list) == nil {
			replace(db, table, &list, done)
			if w, err := client.Watch(ctx, kubeapi.CiliumEndpoints, "", metav1.ListOptions{ResourceVersion: list.ResourceVersion}); err == nil {
				select { // each change causes a new list
				case <-w.ResultChan():
				case <-ctx.Done():
				}
				w.Stop()
			}
		}
		select {
		case <-ctx.Done():
		case <-time.After(10 * time.Millisecond):
		}
	}
}

func replace(db *statedb.DB, table statedb.RWTable[*cilium.Endpoint], list *ciliumv2.CiliumEndpointList, done func(statedb.WriteTxn)) {
	txn := db.WriteTxn(table)
	defer txn.Commit()
	_ = table.DeleteAll(txn)
	for _, o := range list.Items {
		row := cilium.EndpointFields{Namespace: o.Namespace, Name: o.Name, UID: string(o.UID)}
		if o.Labels[ciliumv2.NodeLabel] != "" { // tests use several names for this node
			row.Written = ciliumv2.Digest(&o)
		}
		if id := o.Status.Identity; id != nil {
			row.Identity = uint32(id.ID)
		}
		if n := o.Status.Networking; n != nil {
			row.Node, _ = netip.ParseAddr(n.Node)
			for _, pair := range n.Addressing {
				for _, text := range []string{pair.IPv4, pair.IPv6} {
					if a, err := netip.ParseAddr(text); err == nil {
						row.Addrs = append(row.Addrs, a)
					}
				}
			}
		}
		_, _, _ = table.Insert(txn, cilium.NewEndpoint(row))
	}
	done(txn)
}

func commands(t testing.TB, server *kubetest.Server) upstream.ScriptCmdsOut {
	simple := func(summary string, run func(args []string) string) script.Cmd {
		return script.Command(script.CmdUsage{Summary: summary, Args: "..."}, func(_ *script.State, args ...string) (script.WaitFunc, error) {
			out := run(args)
			return func(*script.State) (string, string, error) { return out, "", nil }, nil
		})
	}
	return upstream.NewScriptCmds(map[string]script.Cmd{
		"kube/show": simple("Show the objects", func([]string) string { return show(server) }),
		"kube/put": simple("Make an object: name, UID of the pod, node in its label, node's address", func(args []string) string {
			server.Put(foreign(args[0], args[1], args[2], args[3]))
			return ""
		}),
		"kube/delete": simple("Delete an object", func(args []string) string {
			server.Remove(kubeapi.CiliumEndpoints, "default", args[0])
			return ""
		}),
		"kube/fail": simple("Answer writes with an HTTP status; 0 ends that", func(args []string) string {
			status := 0
			_, _ = fmt.Sscan(args[0], &status)
			server.Fault(func(r *http.Request) (int, string) {
				if r.Method == http.MethodGet {
					return 0, ""
				}
				return status, ""
			})
			return ""
		}),
		"kube/writes": simple("Count the writes so far", func([]string) string {
			n := 0
			for _, r := range server.Requests() {
				if r.Verb != "get" && r.Verb != "list" && r.Verb != "watch" {
					n++
				}
			}
			return fmt.Sprintln(n)
		}),
	})
}

// foreign returns an object of another writer, with a field that this cell does not know.
func foreign(name, pod, node, addr string) *ciliumv2.CiliumEndpoint {
	o := &ciliumv2.CiliumEndpoint{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name,
		Annotations: map[string]string{"theirs": "kept"}}}
	if node != "-" {
		o.Labels = map[string]string{ciliumv2.NodeLabel: node}
	}
	o.OwnerReferences = []metav1.OwnerReference{{APIVersion: "v1", Kind: "Pod", Name: name, UID: types.UID(pod)}}
	o.Status.Networking = &ciliumv2.EndpointNetworking{Node: addr}
	o.Status.NamedPorts = []ciliumv2.NamedPort{{Name: "http", Port: 80, Protocol: "TCP"}}
	return o
}

// show prints one line for each object.
func show(server *kubetest.Server) string {
	var b strings.Builder
	for _, any := range server.List(kubeapi.CiliumEndpoints) {
		o := any.(*ciliumv2.CiliumEndpoint)
		fmt.Fprintf(&b, "%s/%s pod=%s by=%s state=%s", o.Namespace, o.Name, podOf(o), o.Labels[ciliumv2.NodeLabel], o.Status.State)
		if id := o.Status.Identity; id != nil {
			fmt.Fprintf(&b, " identity=%d %s", id.ID, strings.Join(id.Labels, ","))
		}
		if n := o.Status.Networking; n != nil {
			fmt.Fprintf(&b, " node=%s %v", n.Node, n.Addressing)
		}
		fmt.Fprintf(&b, " ports=%d annotations=%d\n", len(o.Status.NamedPorts), len(o.Annotations))
	}
	return b.String()
}
