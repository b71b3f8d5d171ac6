package main

import (
	"context"
	"fmt"
	"net/netip"
	"time"

	"golang.org/x/sys/unix"

	"github.com/waggle-net/waggle/test/nodekit"
)

const (
	requests   = 2000     // of one round of request-response
	streamSize = 64 << 20 // bytes of one round of a stream
)

// traffic compares two pods with two namespaces that one bare veth pair joins.
func (b *bench) traffic(ctx context.Context) error {
	node, err := b.startNode(ctx, nodekit.Options{})
	if err != nil {
		return err
	}
	defer node.Close()
	client, err := node.AddPod(ctx, "client")
	if err != nil {
		return err
	}
	defer client.Close()
	server, err := node.AddPod(ctx, "server")
	if err != nil {
		return err
	}
	defer server.Close()
	bare, err := nodekit.NewBarePair()
	if err != nil {
		return err
	}
	defer bare.Close()

	for _, ipv6 := range []bool{false, true} {
		family := map[bool]string{false: "IPv4", true: "IPv6"}[ipv6]
		ours := path{client, server, server.Addr(ipv6)}
		control := path{bare.Client(), bare.Server(), bare.Addr(ipv6)}
		var o, c, os, cs []time.Duration
		for range b.rounds {
			for _, side := range []struct {
				path         path
				rr, streamed *[]time.Duration
			}{{ours, &o, &os}, {control, &c, &cs}} {
				rr, err := side.path.requestResponse()
				if err != nil {
					return fmt.Errorf("request-response %s: %w", family, err)
				}
				stream, err := side.path.stream()
				if err != nil {
					return fmt.Errorf("stream %s: %w", family, err)
				}
				*side.rr, *side.streamed = append(*side.rr, rr), append(*side.streamed, stream)
			}
		}
		rate := func(d time.Duration) string { return fmt.Sprintf("%.0f/s", float64(time.Second)/float64(d)) }
		fmt.Fprintf(b.table, "request-response %s, one CPU, p50\t%s\t%s\t%.3f\t0.92 of the rate\t\n", family,
			rate(median(o)), rate(median(c)), float64(median(c))/float64(median(o)))
		gbit := func(d time.Duration) string { return fmt.Sprintf("%.1f Gbit/s", streamSize*8/d.Seconds()/1e9) }
		fmt.Fprintf(b.table, "stream %s\t%s\t%s\t%.3f\t\t\n", family, gbit(median(os)), gbit(median(cs)),
			float64(median(cs))/float64(median(os)))
	}
	return nil
}

// path is two ends and the address of the second.
type path struct {
	client, server nodekit.Place
	addr           netip.Addr
}

// requestResponse returns the p50 of one transaction. Both ends run blocking system calls on threads of the same CPU,
// so that neither the scheduler's choice of a CPU nor Go's poller is measured.
func (p path) requestResponse() (time.Duration, error) {
	took := make([]time.Duration, 0, requests)
	err := p.connected(func(fd int) error {
		buffer := make([]byte, 1)
		for {
			if n, err := read(fd, buffer); n <= 0 {
				return err
			}
			if _, err := write(fd, buffer); err != nil {
				return err
			}
		}
	}, func(fd int) error {
		buffer := make([]byte, 1)
		for range requests {
			d, err := timed(func() error {
				if _, err := write(fd, buffer); err != nil {
					return err
				}
				_, err := read(fd, buffer)
				return err
			})
			if err != nil {
				return err
			}
			took = append(took, d)
		}
		return nil
	}, true)
	return median(took), err
}

// stream returns how long streamSize bytes took, until the server had read the last.
func (p path) stream() (took time.Duration, err error) {
	err = p.connected(func(fd int) error {
		buffer := make([]byte, 256<<10)
		for left := streamSize; left > 0; {
			n, err := read(fd, buffer)
			if err != nil || n == 0 {
				return err
			}
			left -= n
		}
		_, err := write(fd, buffer[:1])
		return err
	}, func(fd int) (err error) {
		buffer := make([]byte, 256<<10)
		took, err = timed(func() error {
			for left := streamSize; left > 0; {
				n, err := write(fd, buffer[:min(left, len(buffer))])
				if err != nil {
					return err
				}
				left -= n
			}
			_, err := read(fd, buffer[:1])
			return err
		})
		return err
	}, false)
	return took, err
}

// connected runs both ends of one TCP connection, each on a thread of its own.
func (p path) connected(serve, call func(fd int) error, oneCPU bool) error {
	listening, served := make(chan unix.Sockaddr, 1), make(chan error, 1)
	go func() {
		served <- p.server.Do(func() error {
			defer close(listening)
			listener, err := listen(p.addr)
			if err != nil {
				return err
			}
			defer unix.Close(listener)
			name, err := unix.Getsockname(listener)
			if err != nil {
				return err
			}
			listening <- name
			fd, _, err := unix.Accept(listener)
			if err != nil {
				return err
			}
			defer unix.Close(fd)
			if err := prepare(fd, oneCPU); err != nil {
				return err
			}
			return serve(fd)
		})
	}()
	name, ok := <-listening
	if !ok {
		return <-served
	}
	if err := p.client.Do(func() error {
		fd, err := unix.Socket(domain(p.addr), unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			return err
		}
		defer unix.Close(fd)
		if err := prepare(fd, oneCPU); err != nil {
			return err
		}
		if err := unix.Connect(fd, name); err != nil {
			return fmt.Errorf("connect to %s: %w", p.addr, err)
		}
		return call(fd)
	}); err != nil {
		return err
	}
	return <-served
}

// read and write try again when a signal of Go's scheduler interrupted them: with a time limit on a socket the kernel
// does not do that itself (signal(7)).
func read(fd int, buffer []byte) (int, error)  { return retried(unix.Read, fd, buffer) }
func write(fd int, buffer []byte) (int, error) { return retried(unix.Write, fd, buffer) }

func retried(call func(int, []byte) (int, error), fd int, buffer []byte) (int, error) {
	for {
		n, err := call(fd, buffer)
		if err != unix.EINTR {
			return n, err
		}
	}
}

// prepare sets a time limit, turns Nagle's algorithm off and, if asked, binds the thread to the first CPU.
func prepare(fd int, oneCPU bool) error {
	limit := unix.Timeval{Sec: 10}
	for _, option := range []int{unix.SO_RCVTIMEO, unix.SO_SNDTIMEO} {
		if err := unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, option, &limit); err != nil {
			return err
		}
	}
	if err := unix.SetsockoptInt(fd, unix.IPPROTO_TCP, unix.TCP_NODELAY, 1); err != nil {
		return err
	}
	if !oneCPU {
		return nil
	}
	var set unix.CPUSet
	set.Set(0)
	return unix.SchedSetaffinity(0, &set)
}

func domain(addr netip.Addr) int {
	if addr.Is6() {
		return unix.AF_INET6
	}
	return unix.AF_INET
}

func listen(addr netip.Addr) (fd int, err error) {
	if fd, err = unix.Socket(domain(addr), unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0); err != nil {
		return 0, err
	}
	var name unix.Sockaddr
	if addr.Is6() {
		name = &unix.SockaddrInet6{Addr: addr.As16()}
	} else {
		name = &unix.SockaddrInet4{Addr: addr.As4()}
	}
	if err = unix.Bind(fd, name); err == nil {
		err = unix.Listen(fd, 1)
	}
	if err != nil {
		_ = unix.Close(fd)
		return 0, fmt.Errorf("listen at %s: %w", addr, err)
	}
	return fd, nil
}
