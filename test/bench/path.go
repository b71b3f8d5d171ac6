package main

import (
	"fmt"
	"net/netip"
	"time"

	"golang.org/x/sys/unix"

	"github.com/waggle-net/waggle/test/nodekit"
)

const (
	requests    = 2000     // of one round of request-response
	connections = 100      // of one round
	streamSize  = 64 << 20 // bytes of one round of a stream
)

// path is two ends and the address of the second.
type path struct {
	client, server nodekit.NetNS
	addr           netip.Addr
	port           uint16         // of the server, 0 for any
	service        netip.AddrPort // destination of clients instead of the server; the zero value for none
}

// requestResponse returns the p50 duration of one transaction. Both ends run blocking system calls on threads of the same CPU, which excludes the scheduler's
// choice of a CPU and Go's poller from the measurement.
func (p path) requestResponse() (time.Duration, error) {
	took, err := p.exchanges(requests)
	return median(took), err
}

// exchanges returns the durations of count transactions.
func (p path) exchanges(count int) (took []time.Duration, err error) {
	took = make([]time.Duration, 0, count)
	err = p.connected(func(fd int) error {
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
		for range count {
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
	return took, err
}

// stream returns the time for streamSize bytes, until the server has read the last byte.
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

// connects returns the p50 time to establish a connection. The client resets the connection, so that neither end keeps state.
func (p path) connects() (time.Duration, error) {
	took := make([]time.Duration, 0, connections)
	err := p.listening(func(listener int) error {
		if err := pin(); err != nil {
			return err
		}
		for range connections {
			fd, err := accept(listener)
			if err != nil {
				return err
			}
			_ = unix.Close(fd) // nothing was sent
		}
		return nil
	}, func(name unix.Sockaddr) error {
		if err := pin(); err != nil {
			return err
		}
		for range connections {
			d, err := p.connectOnce(name)
			if err != nil {
				return err
			}
			took = append(took, d)
		}
		return nil
	})
	return median(took), err
}

func (p path) connectOnce(name unix.Sockaddr) (time.Duration, error) {
	fd, err := unix.Socket(domain(p.addr), unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return 0, err
	}
	defer unix.Close(fd)
	if err := unix.SetsockoptLinger(fd, unix.SOL_SOCKET, unix.SO_LINGER, &unix.Linger{Onoff: 1}); err != nil {
		return 0, err
	}
	return timed(func() error { return unix.Connect(fd, name) })
}

// connected runs both ends of one TCP connection.
func (p path) connected(serve, call func(fd int) error, oneCPU bool) error {
	return p.listening(func(listener int) error {
		fd, err := accept(listener)
		if err != nil {
			return err
		}
		defer unix.Close(fd)
		if err := prepare(fd, oneCPU); err != nil {
			return err
		}
		return serve(fd)
	}, func(name unix.Sockaddr) error {
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
	})
}

// listening runs a server with a listening socket and a client with the server's address, each on a separate thread.
func (p path) listening(serve func(listener int) error, call func(unix.Sockaddr) error) error {
	listening, served := make(chan unix.Sockaddr, 1), make(chan error, 1)
	go func() {
		served <- p.server.Do(func() error {
			defer close(listening)
			listener, err := listen(p.addr, p.port)
			if err != nil {
				return err
			}
			defer unix.Close(listener)
			name, err := unix.Getsockname(listener)
			if err != nil {
				return err
			}
			if p.service.IsValid() {
				name = sockaddr(p.service)
			}
			listening <- name
			return serve(listener)
		})
	}()
	name, ok := <-listening
	if !ok {
		return <-served
	}
	if err := p.client.Do(func() error { return call(name) }); err != nil {
		return err
	}
	return <-served
}
