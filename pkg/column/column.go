// Package column formats values for columns of tables; a value that is not set is "-".
package column

import (
	"net/netip"
	"time"
)

// Addr returns an address, unless it is invalid.
func Addr(a netip.Addr) string {
	if !a.IsValid() {
		return "-"
	}
	return a.String()
}

// Time returns a time to the second in UTC, unless it is zero.
func Time(t time.Time) string {
	if t.IsZero() {
		return "-"
	}
	return t.UTC().Format(time.RFC3339)
}
