package clusterpool

import (
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/waggle-net/waggle/pkg/kubernetes/ciliumv2"
	"github.com/waggle-net/waggle/pkg/kubernetes/kubeapi"
	"github.com/waggle-net/waggle/pkg/kubernetes/kubeapi/kubetest"
)

// reads counts the lists of CiliumNodes and the requests for their pages.
func reads(s *kubetest.Server) (lists, pages int) {
	for _, q := range s.Requests() {
		if q.Verb != "list" || q.Resource != kubeapi.CiliumNodes.String() {
			continue
		}
		if pages++; !strings.Contains(q.Query, "continue=") {
			lists++
		}
	}
	return lists, pages
}

// Nodes join while rounds are paced. Each node has its CIDRs soon, no two nodes have the same CIDR, and the allocator lists nodes seldom.
func TestAllocator_NodesJoin_FewLists(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		nodes  int
		each   time.Duration // time between two nodes
		within time.Duration // maximum time until a node has its CIDRs
		lists  int           // maximum number of lists until then
	}{
		"1,000 nodes within a minute":  {1000, 55 * time.Millisecond, sustained + settle, 20},
		"1,000 nodes at once":          {1000, 0, between + settle, 3},
		"a node a second for 55 s":     {55, time.Second, sustained + settle, 20},
		"a node in a minute":           {1, 0, settle, 1},
		"three nodes in three seconds": {3, time.Second, between, 3},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				s := kubetest.New(t, kubetest.InMemory())
				r := newReplica(t, s.Client(t), DefaultConfig)
				r.lead(t, true)
				r.start(t)
				time.Sleep(time.Minute)
				previousLists, previousPages := reads(s)
				require.Equal(t, 1, previousLists, "of no nodes")
				began := time.Now()
				for i := range test.nodes {
					s.Put(ciliumNode(nodeName(i)))
					if before := i - int(test.within/max(test.each, time.Nanosecond)) - 1; before >= 0 {
						requireCIDRs(t, s, nodeName(before))
					}
					time.Sleep(test.each)
				}
				time.Sleep(test.within)
				synctest.Wait()
				took := time.Since(began)
				require.Equal(t, test.nodes, check(t, s, 2))
				lists, pages := reads(s)
				lists, pages = lists-previousLists, pages-previousPages
				t.Attr("lists", fmt.Sprintf("%d in %s", lists, took))
				t.Attr("pages", fmt.Sprint(pages))
				require.LessOrEqual(t, lists, test.lists)
				require.LessOrEqual(t, pages, lists*(1+(test.nodes-1)/pageSize))
				require.LessOrEqual(t, took, time.Minute)
			})
		})
	}
}

// Terms as the leader that end before their round starts do not delay the rounds of a later term.
func TestAllocator_ShortTerms_DelayNoRound(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := kubetest.New(t, kubetest.InMemory())
		r := newReplica(t, s.Client(t), DefaultConfig)
		r.start(t)
		for range 5 * burst {
			r.lead(t, true)
			synctest.Wait()
			r.lead(t, false)
			synctest.Wait()
		}
		s.Put(ciliumNode(nodeName(0)))
		r.lead(t, true)
		time.Sleep(sustained + settle)
		synctest.Wait()
		requireCIDRs(t, s, nodeName(0))
	})
}

func nodeName(i int) string { return fmt.Sprintf("node-%d", i) }

func requireCIDRs(t *testing.T, s *kubetest.Server, name string) {
	t.Helper()
	var node ciliumv2.CiliumNode
	require.True(t, s.Get(kubeapi.CiliumNodes, "", name, &node))
	require.Len(t, node.Spec.IPAM.PodCIDRs, 2, "%s waits too long", name)
}
