package nodehealthprober

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/http"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	upstream "github.com/cilium/hive"
	"github.com/cilium/hive/script"

	"github.com/waggle-net/waggle/api/v1beta"
	"github.com/waggle-net/waggle/pkg/icmpecho"
	"github.com/waggle-net/waggle/pkg/pipenet"
)

// fake is a network of hosts that reply unless a fault is set for them, and the sockets of this node.
type fake struct {
	mu    sync.Mutex
	wrong map[netip.Addr]wrong
	asked map[netip.Addr]*counts
	views map[netip.Addr]*digest // digests of HTTP replies; an address without one replies like Cilium
	hello *pipenet.Listener
	api   *pipenet.Listener
}

// wrong is the result of each request; nil is a reply after a millisecond, and errSilence is no reply.
type wrong struct{ echo, hello error }

type counts struct{ echo, hello int }

var errSilence = errors.New("no answer")

// troubles has the names of the faults.
var troubles = map[string]error{
	"silent": errSilence, "refused": syscall.ECONNREFUSED, "no-route": syscall.EHOSTUNREACH, "status": errors.New("HTTP status 503"),
	"impeded": icmpecho.CannotOpen(syscall.EPERM),
	"hostile": errors.New("read the answer: \x1b[2J\x07" + strings.Repeat("long ", 100)),
}

func newFake() *fake {
	return &fake{wrong: map[netip.Addr]wrong{}, asked: map[netip.Addr]*counts{}, views: map[netip.Addr]*digest{}, hello: pipenet.Listen("hello"), api: pipenet.Listen("api")}
}

// count counts a request and returns the fault of the host.
func (f *fake) count(to netip.Addr, which func(*counts) *int) wrong {
	f.mu.Lock()
	defer f.mu.Unlock()
	c := f.asked[to]
	if c == nil {
		c = &counts{}
		f.asked[to] = c
	}
	*which(c)++
	return f.wrong[to]
}

func (f *fake) Echo(ctx context.Context, to netip.Addr) (time.Duration, error) {
	return reply(ctx, f.count(to, func(c *counts) *int { return &c.echo }).echo)
}

func (f *fake) Hello(ctx context.Context, to netip.AddrPort, _ string) (time.Duration, *digest, error) {
	latency, err := reply(ctx, f.count(to.Addr(), func(c *counts) *int { return &c.hello }).hello)
	f.mu.Lock()
	defer f.mu.Unlock()
	return latency, f.views[to.Addr()], err
}

func reply(ctx context.Context, wrong error) (time.Duration, error) {
	if wrong == errSilence {
		<-ctx.Done()
		return 0, ctx.Err()
	}
	time.Sleep(time.Millisecond)
	return time.Millisecond, wrong
}

func (*fake) Open()  {}
func (*fake) Close() {}

func (f *fake) ListenHello(context.Context, uint16) (net.Listener, error) { return f.hello, nil }
func (f *fake) ListenAPI(string) (net.Listener, error)                    { return f.api, nil }

// total returns the sum of the requests to all addresses.
func (f *fake) total() (sum counts) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, c := range f.asked {
		sum.echo += c.echo
		sum.hello += c.hello
	}
	return sum
}

// set sets the fault of a host.
func (f *fake) set(to netip.Addr, w wrong) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.wrong[to] = w
}

// call sends a request to the API.
func (f *fake) call(ctx context.Context, method, path string) (code int, body string, err error) {
	conn, err := f.api.Dial(ctx)
	if err != nil {
		return 0, "", err
	}
	defer conn.Close()
	request, err := http.NewRequestWithContext(ctx, method, "http://localhost"+v1beta.BasePath+path, nil)
	if err != nil {
		return 0, "", err
	}
	request.Close = true
	if err := request.Write(conn); err != nil {
		return 0, "", err
	}
	response, err := http.ReadResponse(bufio.NewReader(conn), request)
	if err != nil {
		return 0, "", err
	}
	defer response.Body.Close()
	var text bytes.Buffer
	_, err = text.ReadFrom(response.Body)
	return response.StatusCode, text.String(), err
}

// commands change the network and send requests to the API:
//
//	net/set ADDR ECHO HELLO    set the faults of a host, by the names in troubles; - for none
//	net/view ADDR [DIGEST]     set the digest in the replies of a host, none without one
//	net/asked [ADDR]           number of requests to each address, or to one
//	health/call METHOD PATH    reply of the API, including times and latencies
func (f *fake) commands() upstream.ScriptCmdsOut {
	return upstream.NewScriptCmds(map[string]script.Cmd{
		"net/set": script.Command(script.CmdUsage{Summary: "Break a host", Args: "addr echo hello"},
			func(_ *script.State, args ...string) (script.WaitFunc, error) {
				addr, err := netip.ParseAddr(args[0])
				f.set(addr, wrong{troubles[args[1]], troubles[args[2]]})
				return nil, err
			}),
		"net/view": script.Command(script.CmdUsage{Summary: "Set the digest of a host", Args: "addr [digest]"},
			func(_ *script.State, args ...string) (script.WaitFunc, error) {
				addr, err := netip.ParseAddr(args[0])
				f.mu.Lock()
				defer f.mu.Unlock()
				delete(f.views, addr)
				if len(args) > 1 {
					f.views[addr] = parseDigest(args[1])
				}
				return nil, err
			}),
		"net/asked": script.Command(script.CmdUsage{Summary: "Count requests", Args: "[addr]"},
			func(_ *script.State, args ...string) (script.WaitFunc, error) {
				f.mu.Lock()
				defer f.mu.Unlock()
				var out strings.Builder
				for _, addr := range slices.SortedFunc(maps.Keys(f.asked), netip.Addr.Compare) {
					if len(args) > 0 && args[0] != addr.String() {
						continue
					}
					fmt.Fprintf(&out, "%s echo=%d hello=%d\n", addr, f.asked[addr].echo, f.asked[addr].hello)
				}
				return func(*script.State) (string, string, error) { return out.String(), "", nil }, nil
			}),
		"health/call": script.Command(script.CmdUsage{Summary: "Call the API", Args: "method path"},
			func(s *script.State, args ...string) (script.WaitFunc, error) {
				code, body, err := f.call(s.Context(), args[0], args[1])
				if err != nil {
					return nil, err
				}
				return func(*script.State) (string, string, error) { return fmt.Sprintf("%d %s", code, body), "", nil }, nil
			}),
	})
}
