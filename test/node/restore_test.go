package node_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/waggle-net/waggle/api/v1/models"
	"github.com/waggle-net/waggle/test/nodekit"
)

// TestPrivilegedRestart_AddressInUse_NotReallocated requests addresses from before the agent listens: even the earliest request gets an address that no pod of the
// previous run has.
func TestPrivilegedRestart_AddressInUse_NotReallocated(t *testing.T) {
	t.Parallel()
	node := startNode(t, nodekit.Options{IPv4CIDR: "10.244.1.0/28", IPv6CIDR: "-", AgentArgs: []string{"--enable-ipv6=false"}})
	const pods, free = 5, 16 - 3 - 5 // less network, broadcast and router
	owner := map[string]string{}
	for i := range pods {
		name := fmt.Sprintf("pod-%d", i)
		owner[addPod(t, node, name).Addr(false).String()] = name
	}
	if err := node.KillAgent(t.Context()); err != nil {
		t.Fatal(err)
	}

	given := make(chan string, free)
	group, ctx := errgroup.WithContext(t.Context())
	for range free {
		group.Go(func() error {
			for deadline := time.Now().Add(awaitFor); time.Now().Before(deadline); time.Sleep(time.Millisecond) {
				addr, err := postIPAM(ctx, node)
				if err == nil {
					given <- addr
					return nil
				}
				if !errors.As(err, new(*net.OpError)) { // the agent does not listen yet
					return err
				}
			}
			return errors.New("the agent did not listen")
		})
	}
	if err := node.StartAgent(); err != nil {
		t.Fatal(err)
	}
	if err := group.Wait(); err != nil {
		t.Fatal(err)
	}
	close(given)
	for addr := range given {
		if name, taken := owner[addr]; taken {
			t.Errorf("%s is given and belongs to %s", addr, name)
		}
		owner[addr] = "a new owner"
	}
	if addr, err := postIPAM(t.Context(), node); err == nil {
		t.Errorf("%s is given though none should be left", addr)
	}
}

// postIPAM requests an IPv4 address.
func postIPAM(ctx context.Context, node *nodekit.Node) (string, error) {
	client := http.Client{Transport: &http.Transport{DisableKeepAlives: true, DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "unix", filepath.Join(node.StateDir(), "waggle.sock"))
	}}}
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://localhost/v1/ipam?family=ipv4&owner=new", nil)
	if err != nil {
		return "", err
	}
	response, err := client.Do(request)
	if err != nil {
		return "", err
	}
	defer response.Body.Close()
	if response.StatusCode != http.StatusCreated {
		return "", fmt.Errorf("the agent answered %s", response.Status)
	}
	var answer models.IPAMResponse
	err = json.NewDecoder(response.Body).Decode(&answer)
	return answer.Address.Ipv4, err
}
