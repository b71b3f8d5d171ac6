package policyqueue

import (
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"

	"github.com/waggle-net/waggle/pkg/policy"
)

func add(q *Queue, names ...string) {
	for _, name := range names {
		q.Add(ref(name))
	}
}

// ref reads "namespace/name", or "/name" of a clusterwide policy.
func ref(text string) policy.Ref {
	namespace, name, _ := strings.Cut(text, "/")
	if namespace == "" {
		return policy.Ref{Kind: policy.Clusterwide, Name: name}
	}
	return policy.Ref{Kind: policy.Cilium, Namespace: namespace, Name: name}
}

// take returns "namespace/name" of policies of size 10.
func take(q *Queue, room int) (names []string) {
	for _, r := range q.Take(room, func(policy.Ref) int { return 10 }) {
		names = append(names, r.Namespace+"/"+r.Name)
	}
	return names
}

func TestQueue(t *testing.T) {
	t.Parallel()
	var q Queue
	same := func(got []string, want ...string) {
		t.Helper()
		if !slices.Equal(got, want) {
			t.Errorf("got %v, want %v", got, want)
		}
	}
	same(take(&q, 100))
	add(&q, "a/1", "a/2", "a/3", "b/1", "a/1")
	same(take(&q, 20), "a/1", "b/1")
	same(take(&q, 5), "a/2") // one policy is taken whatever its size
	add(&q, "c/1", "a/4")
	q.Remove(ref("a/3"))
	q.Remove(ref("a/3"))
	if q.Len() != 2 {
		t.Errorf("%d policies", q.Len())
	}
	add(&q, "a/3") // in its previous place
	same(take(&q, 10), "a/3")
	same(take(&q, 19), "c/1")
	add(&q, "b/2", "b/3")
	q.Remove(ref("b/2"))
	q.Remove(ref("moon/1"))
	same(take(&q, 100), "a/4", "b/3")
	if q.Len() != 0 || len(q.turns)+len(q.waiting)+len(q.queued) != 0 {
		t.Errorf("the queue is not empty: %+v", q)
	}
}

// TestQueue_PolicyOfANamespace_DoesNotWaitForThousandsOfAnother: the policy is taken with the next portion, although the others were added before it.
func TestQueue_PolicyOfANamespace_DoesNotWaitForThousandsOfAnother(t *testing.T) {
	t.Parallel()
	var q Queue
	for i := range 5000 {
		add(&q, fmt.Sprint("hostile/", i))
	}
	take(&q, 100)
	add(&q, "quiet/1")
	if got := take(&q, 100); !slices.Contains(got, "quiet/1") || len(got) != 10 {
		t.Errorf("got %v", got)
	}
	if got := take(&q, math.MaxInt); len(got) != 5000-19 {
		t.Errorf("%d policies are left", len(got))
	}
}

// TestQueue_ClusterwidePolicies_TakeTurnsOfTheirOwn: a policy of a namespace is taken between clusterwide policies, and no namespace delays a clusterwide policy.
func TestQueue_ClusterwidePolicies_TakeTurnsOfTheirOwn(t *testing.T) {
	t.Parallel()
	var q Queue
	add(&q, "/a", "/b", "a/1", "a/2", "/c")
	if got := take(&q, 30); !slices.Equal(got, []string{"/a", "/b", "a/1"}) {
		t.Errorf("got %v", got)
	}
	if got := take(&q, 100); !slices.Equal(got, []string{"/c", "a/2"}) {
		t.Errorf("got %v", got)
	}
}
