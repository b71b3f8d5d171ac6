package reflectors

import (
	"fmt"
	"math/rand/v2"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/waggle-net/waggle/pkg/kubernetes/ciliumv2"
	"github.com/waggle-net/waggle/pkg/kubernetes/kubeapi"
	"github.com/waggle-net/waggle/pkg/kubernetes/kubeapi/kubetest"
	"github.com/waggle-net/waggle/pkg/testseed"
)

func has(text, part string) bool { return strings.Contains(text, part) }

func endpoint(name string, n int) *ciliumv2.CiliumEndpoint {
	return &ciliumv2.CiliumEndpoint{ObjectMeta: metav1.ObjectMeta{Namespace: "a", Name: name}, Status: ciliumv2.EndpointStatus{
		Identity: &ciliumv2.EndpointIdentity{ID: int64(n)},
		Networking: &ciliumv2.EndpointNetworking{Node: "192.0.2.1", Addressing: []ciliumv2.AddressPair{
			{IPv4: fmt.Sprintf("10.%d.%d.%d", n>>16&255, n>>8&255, n&255), IPv6: fmt.Sprintf("fd00::%x", n)}}}}}
}

// TestModel applies random changes and faults to a server. Afterwards, the tables have the rows of the server's objects.
func TestModel(t *testing.T) {
	t.Parallel()
	for round := range 5 {
		t.Run(strconv.Itoa(round), func(t *testing.T) {
			t.Parallel()
			random := testseed.New(t)
			synctest.Test(t, func(t *testing.T) { model(t, random) })
		})
	}
}

func model(t *testing.T, random *rand.Rand) {
	server := kubetest.New(t, kubetest.InMemory())
	if random.IntN(2) == 0 {
		server.EnableWatchList()
	}
	r := follow(t, server, Settings{}, false)
	up := true
	steps := []func(){
		func() { server.Put(endpoint(fmt.Sprint("e", random.IntN(20)), random.IntN(1000))) },
		func() { server.Put(endpoint(fmt.Sprint("e", random.IntN(20)), random.IntN(1000))) },
		func() { server.Put(node(fmt.Sprint("n", random.IntN(5)), fmt.Sprintf("192.0.2.%d", random.IntN(9)))) },
		func() {
			server.Put(&ciliumv2.CiliumNode{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprint("n", random.IntN(5)), Annotations: map[string]string{"waggle.io/wrote": `{"a":"b"}`}},
				Spec: ciliumv2.NodeSpec{Addresses: []ciliumv2.NodeAddress{{Type: "InternalIP", IP: fmt.Sprintf("192.0.2.%d", random.IntN(9))}}}})
		},
		func() { server.Put(pod("a", fmt.Sprint("p", random.IntN(5)), []string{"one", "two"}[random.IntN(2)])) },
		func() { server.Remove(kubeapi.CiliumEndpoints, "a", fmt.Sprint("e", random.IntN(20))) },
		func() { server.Remove(kubeapi.Nodes, "", fmt.Sprint("n", random.IntN(5))) },
		func() { server.Remove(kubeapi.CiliumNodes, "", fmt.Sprint("n", random.IntN(5))) },
		func() { server.Remove(kubeapi.Pods, "a", fmt.Sprint("p", random.IntN(5))) },
		func() {
			if up = !up; up {
				server.Start(t)
			} else {
				server.Stop()
			}
		},
		server.Compact,
		func() { server.EmptyLists(kubeapi.CiliumEndpoints, 1) },
		func() { server.Bookmark(kubeapi.CiliumEndpoints) },
		server.DoubleEvents,
		func() { time.Sleep(time.Duration(random.IntN(5)) * time.Millisecond) },
	}
	for range 400 {
		steps[random.IntN(len(steps))]()
	}
	if !up {
		server.Start(t)
	}
	server.EmptyLists(kubeapi.CiliumEndpoints, 0)
	r.synced(t)
	time.Sleep(holdTime)
	r.becomesSame(t, server)
}
