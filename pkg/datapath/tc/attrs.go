package tc

import (
	"iter"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// attributes iterates over netlink attributes by type. It stops at the first truncated attribute; the parser of the netlink library panics on one.
func attributes(b []byte) iter.Seq2[uint16, []byte] {
	return func(yield func(uint16, []byte) bool) {
		for len(b) >= unix.SizeofRtAttr {
			length := int(nl.NativeEndian().Uint16(b))
			kind := nl.NativeEndian().Uint16(b[2:]) &^ unix.NLA_F_NESTED
			if length < unix.SizeofRtAttr || length > len(b) {
				return
			}
			if !yield(kind, b[unix.SizeofRtAttr:length]) {
				return
			}
			aligned := (length + unix.NLA_ALIGNTO - 1) &^ (unix.NLA_ALIGNTO - 1)
			b = b[min(aligned, len(b)):]
		}
	}
}

// text returns a string attribute, with or without its terminator.
func text(v []byte) string {
	if n := len(v); n > 0 && v[n-1] == 0 {
		v = v[:n-1]
	}
	return string(v)
}

// number returns a 32-bit attribute, or 0 if it is truncated.
func number(v []byte) uint32 {
	if len(v) < 4 {
		return 0
	}
	return nl.NativeEndian().Uint32(v)
}
