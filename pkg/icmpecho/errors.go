package icmpecho

import (
	"errors"
	"fmt"
	"syscall"
)

// ErrLocal marks errors that this node causes. Such errors say nothing about the other node.
var ErrLocal = errors.New("not probed")

// Local wraps an error of a system call with [ErrLocal] when its cause is this node: a missing capability, memory, descriptors, ports, an address of the
// family or the family. ENOBUFS is no such error: a device without a carrier disconnects this node from all others.
func Local(err error) error {
	var number syscall.Errno
	if !errors.As(err, &number) {
		return err
	}
	switch number {
	case syscall.EPERM, syscall.EACCES, syscall.EMFILE, syscall.ENFILE, syscall.ENOMEM, syscall.EADDRNOTAVAIL, syscall.EAFNOSUPPORT, syscall.EPROTONOSUPPORT:
		return fmt.Errorf("%w: %w", ErrLocal, number)
	}
	return err
}
