package nodehealthprober

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"time"

	"github.com/waggle-net/waggle/pkg/icmpecho"
	"github.com/waggle-net/waggle/pkg/unixsocket"
)

// socketGroup may use the API in addition to root, if the group exists.
const socketGroup = "waggle"

// sockets implements [kernel].
type sockets struct{ *icmpecho.Pinger }

func newKernel() kernel { return sockets{icmpecho.New()} }

// Echo implements [kernel].
func (s sockets) Echo(ctx context.Context, to netip.Addr) (time.Duration, error) {
	return s.Pinger.Echo(ctx, icmpecho.Request{To: to})
}

// maxReply limits the bytes that are read of a reply. The peer may be malicious.
const maxReply = 4 << 10

// Hello implements [kernel]. The connection is closed when the context ends or the reply is read; an HTTP client would continue to dial for minutes.
func (sockets) Hello(ctx context.Context, to netip.AddrPort, requester string) (time.Duration, *digest, error) {
	began := time.Now()
	conn, err := (&net.Dialer{KeepAlive: -1}).DialContext(ctx, "tcp", to.String())
	if err != nil {
		return 0, nil, icmpecho.Local(err)
	}
	defer conn.Close()
	theirs, err := ask(ctx, conn, to, requester)
	if err != nil {
		return 0, nil, err
	}
	return time.Since(began), theirs, nil
}

// ask sends the request of a probe and reads the header of the reply, until the context ends.
func ask(ctx context.Context, conn net.Conn, to netip.AddrPort, requester string) (*digest, error) {
	defer context.AfterFunc(ctx, func() { _ = conn.SetDeadline(time.Unix(1, 0)) })()
	if _, err := fmt.Fprintf(conn, "GET %s HTTP/1.1\r\nHost: %s\r\nUser-Agent: waggle\r\n%s: %s\r\nConnection: close\r\n\r\n",
		helloPath, to, requesterHeader, url.PathEscape(requester)); err != nil {
		return nil, err
	}
	answer, err := http.ReadResponse(bufio.NewReaderSize(io.LimitReader(conn, maxReply), 512), nil)
	if err != nil {
		return nil, fmt.Errorf("read the answer: %w", err)
	}
	if answer.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("HTTP status %d", answer.StatusCode)
	}
	return parseDigest(answer.Header.Get(digestHeader)), nil
}

// ListenHello implements [kernel]. Without IPv6 in the kernel it listens on IPv4 only.
func (sockets) ListenHello(ctx context.Context, port uint16) (net.Listener, error) {
	l, err := (&net.ListenConfig{KeepAliveConfig: net.KeepAliveConfig{Enable: false}, KeepAlive: -1}).Listen(ctx, "tcp", fmt.Sprintf(":%d", port))
	if err != nil {
		return nil, fmt.Errorf("answer probes of other nodes: %w: free the port, or set --cluster-health-port on all nodes", err)
	}
	return l, nil
}

// ListenAPI implements [kernel].
func (sockets) ListenAPI(path string) (net.Listener, error) {
	return unixsocket.Listen(path, unixsocket.Options{Mode: 0o660, Group: socketGroup})
}
