package icmpecho

import (
	"errors"
	"fmt"
	"syscall"
)

// ErrLocal is part of errors that this node causes, and that say nothing about another one.
var ErrLocal = errors.New("not probed")

// Local marks an error of a system call with [ErrLocal] when it is about this node: it lacks a right, memory, descriptors, ports, an address of the
// family or the family. ENOBUFS is none of these: a device without a carrier is what keeps this node from all others.
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
