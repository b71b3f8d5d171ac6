package clusterhealthz

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"syscall"
	"time"

	"github.com/cilium/hive/cell"

	"github.com/waggle-net/waggle/pkg/watchdog"
)

const (
	// replicaHeader marks the answers of a replica of the cluster role.
	replicaHeader = "Waggle-Role"
	replicaRole   = "cluster"

	identifyTimeout = 2 * time.Second // timeout of the request that identifies the owner of the port
	tryAgain        = time.Second     // interval between two attempts to listen
	// mostHangs is the number of consecutive attempts at which a replica without the port may hang before it ends. kubelet's probes reach only the
	// replica with the port.
	mostHangs = 30
)

// port is the listener of a replica. Two replicas on one node share one port, since both use the node's network namespace: one of them answers the
// probes of both, and the other waits for the port.
type port struct {
	address  string
	listener net.Listener  // nil while another replica has the port
	pause    time.Duration // interval between two attempts to listen
	live     func(context.Context) (stall string, live bool)
}

// open listens on the port. It fails if another program than a replica has the port.
func (p *port) open(ctx context.Context) (err error) {
	p.listener, err = net.Listen("tcp", p.address)
	if err == nil || errors.Is(err, syscall.EADDRINUSE) && isReplica(ctx, p.address) {
		return nil
	}
	return fmt.Errorf("--operator-api-serve-addr: %w: choose another port, or an empty address for none", err)
}

// isReplica reports whether a replica of the cluster role answers at an address.
func isReplica(ctx context.Context, address string) bool {
	ctx, cancel := context.WithTimeout(ctx, identifyTimeout)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+address+"/livez", nil)
	if err != nil {
		return false
	}
	client := http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	response, err := client.Do(request)
	if err != nil {
		return false
	}
	_ = response.Body.Close() // only the header matters
	return response.Header.Get(replicaHeader) == replicaRole
}

// wait waits until the other replica has closed the port, and listens on it.
func (p *port) wait(ctx context.Context, health cell.Health) error {
	health.OK("another replica on this node listens on " + p.address + " and serves health probes")
	hangs := 0
	for p.listener == nil {
		if err := watchdog.Sleep(ctx, p.pause); err != nil {
			return nil // ctx has ended
		}
		stall, live := p.live(ctx)
		if hangs++; live {
			hangs = 0
		}
		if hangs == mostHangs {
			return errors.New(stall)
		}
		l, err := net.Listen("tcp", p.address)
		switch {
		case err == nil:
			p.listener = l
		case !errors.Is(err, syscall.EADDRINUSE):
			return fmt.Errorf("--operator-api-serve-addr: %w", err)
		}
	}
	return nil
}
