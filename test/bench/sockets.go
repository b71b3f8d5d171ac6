package main

import (
	"fmt"
	"net/netip"

	"golang.org/x/sys/unix"
)

// read, write and accept retry a call that a signal of Go's scheduler interrupted: the kernel does not restart calls on a socket with a timeout (signal(7)).
func read(fd int, buffer []byte) (int, error)  { return retried(unix.Read, fd, buffer) }
func write(fd int, buffer []byte) (int, error) { return retried(unix.Write, fd, buffer) }

func accept(listener int) (int, error) {
	for {
		fd, _, err := unix.Accept(listener)
		if err != unix.EINTR {
			return fd, err
		}
	}
}

func retried(call func(int, []byte) (int, error), fd int, buffer []byte) (int, error) {
	for {
		n, err := call(fd, buffer)
		if err != unix.EINTR {
			return n, err
		}
	}
}

// prepare sets a timeout, disables Nagle's algorithm and, with oneCPU, binds the thread to the first CPU.
func prepare(fd int, oneCPU bool) error {
	if err := limit(fd); err != nil {
		return err
	}
	if err := unix.SetsockoptInt(fd, unix.IPPROTO_TCP, unix.TCP_NODELAY, 1); err != nil {
		return err
	}
	if oneCPU {
		return pin()
	}
	return nil
}

// limit sets the timeouts of a socket to 10 s.
func limit(fd int) error {
	limit := unix.Timeval{Sec: 10}
	for _, option := range []int{unix.SO_RCVTIMEO, unix.SO_SNDTIMEO} {
		if err := unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, option, &limit); err != nil {
			return err
		}
	}
	return nil
}

// pin binds the thread to the first CPU.
func pin() error {
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

func sockaddr(at netip.AddrPort) unix.Sockaddr {
	if at.Addr().Is6() {
		return &unix.SockaddrInet6{Addr: at.Addr().As16(), Port: int(at.Port())}
	}
	return &unix.SockaddrInet4{Addr: at.Addr().As4(), Port: int(at.Port())}
}

func listen(addr netip.Addr, port uint16) (fd int, err error) {
	if fd, err = unix.Socket(domain(addr), unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0); err != nil {
		return 0, err
	}
	if err = limit(fd); err == nil { // closing connections of the previous round may still exist
		err = unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_REUSEADDR, 1)
	}
	if err == nil {
		err = unix.Bind(fd, sockaddr(netip.AddrPortFrom(addr, port)))
	}
	if err == nil {
		err = unix.Listen(fd, connections)
	}
	if err != nil {
		_ = unix.Close(fd)
		return 0, fmt.Errorf("listen at %s: %w", addr, err)
	}
	return fd, nil
}
