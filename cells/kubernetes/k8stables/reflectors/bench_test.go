package reflectors

import (
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/waggle-net/waggle/cells/kubernetes/k8stables/snapshot"
	"github.com/waggle-net/waggle/cells/kubernetes/k8stables/tables"
	"github.com/waggle-net/waggle/pkg/kubernetes/k8sobjects"
	"github.com/waggle-net/waggle/pkg/kubernetes/kubeapi/kubetest"
)

// manyNodes and manyEndpoints are the size of a large cluster.
const manyNodes, manyEndpoints = 5_000, 20_000

func bigNode(i int) *corev1.Node {
	n := node(fmt.Sprintf("ip-10-0-%d-%d.eu-central-1.compute.internal", i/250, i%250), fmt.Sprintf("10.0.%d.%d", i/250, i%250))
	n.UID = types.UID(fmt.Sprintf("5c0e6a57-6ee5-4f3b-8a61-0f7b%08x", i*2654435761))
	n.Spec.PodCIDRs = []string{fmt.Sprintf("10.%d.%d.0/24", 16+i/250, i%250)}
	for _, l := range []string{"beta.kubernetes.io/arch=amd64", "kubernetes.io/os=linux", "topology.kubernetes.io/region=eu-central-1",
		"topology.kubernetes.io/zone=eu-central-1a", "node.kubernetes.io/instance-type=m5.2xlarge", "node-role=worker"} {
		k, v, _ := strings.Cut(l, "=")
		n.Labels[k] = v
	}
	n.Annotations = map[string]string{"network.cilium.io/ipv4-cilium-host": n.Status.Addresses[0].Address,
		"kubectl.kubernetes.io/last-applied-configuration": strings.Repeat("x", 4000)}
	n.ManagedFields = []metav1.ManagedFieldsEntry{{Manager: "kubelet", FieldsV1: metav1.NewFieldsV1(`{"f:metadata":{}}`)}}
	for j := range 40 {
		n.Status.Images = append(n.Status.Images, corev1.ContainerImage{Names: []string{fmt.Sprint("registry.example/image-", j)}})
	}
	return n
}

func heap() int64 {
	runtime.GC()
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}

// BenchmarkRows measures the memory of a row without its object, and the time to create and insert a row.
func BenchmarkRows(b *testing.B) {
	for name, c := range map[string]struct {
		count int
		table string
		make  func(i int) (k8sobjects.Row, error)
	}{
		"nodes": {manyNodes, "k8s-nodes", func(i int) (k8sobjects.Row, error) { return k8sobjects.FromServer(bigNode(i), "one") }},
		"endpoints": {manyEndpoints, "cilium-endpoints", func(i int) (k8sobjects.Row, error) {
			e := endpoint(fmt.Sprintf("deployment-7d4b9c6f5d-%05d", i), i)
			e.UID = types.UID(fmt.Sprintf("5c0e6a57-6ee5-4f3b-8a61-0f7b%08x", i*2654435761))
			return k8sobjects.FromServer(e, "one")
		}},
	} {
		b.Run(fmt.Sprint(name, "-", c.count), func(b *testing.B) {
			for b.Loop() {
				set := newSet(b)
				table, _ := set.ByName(c.table)
				before := heap()
				txn := set.Write(table)
				for i := range c.count {
					row, err := c.make(i)
					if err != nil {
						b.Fatal(err)
					}
					if err := table.Put(txn, row); err != nil {
						b.Fatal(err)
					}
				}
				txn.Commit()
				b.ReportMetric(float64(heap()-before)/float64(c.count), "heap-B/row")
				runtime.KeepAlive(set)
			}
		})
	}
}

// BenchmarkLargeCluster lists a large cluster from a server in memory, which takes most of the time, and writes and reads the copy.
func BenchmarkLargeCluster(b *testing.B) {
	server := kubetest.New(b)
	for i := range manyNodes {
		server.Put(bigNode(i))
	}
	for i := range manyEndpoints {
		server.Put(endpoint(fmt.Sprintf("deployment-7d4b9c6f5d-%05d", i), i))
	}
	for b.Loop() {
		begin := time.Now()
		r := follow(b, server, Settings{}, false)
		r.synced(b)
		b.ReportMetric(time.Since(begin).Seconds(), "s-to-list")
		r.stop()
		path := filepath.Join(b.TempDir(), "copy")
		s := &Source{settings: Settings{NodeName: "one", Copy: path}, set: r.Set, writeFile: snapshot.Write}
		begin = time.Now()
		if err := s.copy(r.DB.ReadTxn(), []string{"k8s-nodes", "cilium-endpoints"}); err != nil {
			b.Fatal(err)
		}
		b.ReportMetric(time.Since(begin).Seconds(), "s-to-write")
		info, err := os.Stat(path)
		if err != nil {
			b.Fatal(err)
		}
		b.ReportMetric(float64(info.Size()), "copy-B")
		read(b, path)
	}
}

func read(b *testing.B, path string) {
	begin := time.Now()
	file, err := snapshot.Read(path)
	if err != nil {
		b.Fatal(err)
	}
	h, raw, err := snapshot.Decode(file, "one")
	if err != nil {
		b.Fatal(err)
	}
	rows := map[string][]k8sobjects.Row{}
	set := newSet(b)
	for _, r := range raw {
		table, _ := set.ByName(r.Table)
		row, err := table.Decode(r.Row)
		if err != nil {
			b.Fatal(err)
		}
		rows[r.Table] = append(rows[r.Table], row)
	}
	txn := set.Write(set.All()...)
	for name, list := range rows {
		var table tables.Table
		table, _ = set.ByName(name)
		for _, row := range list {
			if err := table.Put(txn, row); err != nil {
				b.Fatal(err)
			}
		}
	}
	txn.Commit()
	b.ReportMetric(time.Since(begin).Seconds(), "s-to-read")
	if h.Rows != manyNodes+manyEndpoints {
		b.Fatalf("%d rows", h.Rows)
	}
}
