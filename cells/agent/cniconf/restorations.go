package cniconf

import (
	"bytes"
	"fmt"
	"time"
)

const (
	// calm is the time without a change by another program after which a conflict has ended.
	calm = time.Minute
	// conflictThreshold is the number of consecutive restorations from which on another program is in conflict with the agent.
	conflictThreshold = 3
	// restoreMin and restoreMax bound the wait before a restoration that follows another one. The wait doubles with each restoration.
	restoreMin, restoreMax = settle, 5 * time.Minute
)

// restorations delays restorations of the file while another program keeps changing it. It is used by one goroutine.
type restorations struct {
	wanted []byte    // the agent's contents of the file when it was last intact; nil before
	count  int       // restorations, each less than calm after the previous one
	intact time.Time // time since which the file was intact when it was last checked
	due    time.Time // time of the pending restoration; zero if none is pending
	found  string    // contents of the file at the last change by another program
}

// ok records that the file is intact.
func (r *restorations) ok(wanted []byte, now time.Time) {
	if r.wanted == nil || !r.due.IsZero() {
		r.intact = now
	}
	r.wanted, r.due = wanted, time.Time{}
	r.calmDown(now)
}

// restores reports whether a write of the file undoes a change by another program. Other writes change the agent's own contents.
func (r *restorations) restores(wanted []byte) bool {
	return r.wanted != nil && bytes.Equal(r.wanted, wanted)
}

// changed records that the file is not intact, and returns the time to wait until it may be written.
func (r *restorations) changed(wanted []byte, found string, now time.Time) time.Duration {
	if !r.restores(wanted) {
		return 0
	}
	if r.due.IsZero() {
		r.calmDown(now)
		r.due = now.Add(backoff(r.count))
	}
	r.found = found
	return max(0, r.due.Sub(now))
}

// written records a write of the file.
func (r *restorations) written(wanted []byte, now time.Time) {
	if r.restores(wanted) {
		r.count++
	}
	r.wanted, r.intact, r.due = wanted, now, time.Time{}
}

// calmDown ends the sequence of restorations if the file stayed intact long enough.
func (r *restorations) calmDown(now time.Time) {
	if now.Sub(r.intact) >= calm {
		r.count = 0
	}
}

// pending returns the time until the pending restoration, or false if none is pending.
func (r *restorations) pending(now time.Time) (time.Duration, bool) {
	return max(0, r.due.Sub(now)), !r.due.IsZero()
}

// conflict returns an error that names the conflict with another program and its remedy, or nil without a conflict.
func (r *restorations) conflict(o options) error {
	if r.count < conflictThreshold {
		return nil
	}
	remedy := "let that program add its plugin to the list after " + pluginType + " and leave the rest, or write another file"
	if o.ReadCNIConf != "" {
		remedy = "add its plugin to " + o.ReadCNIConf + " of --read-cni-conf, or let it write another file"
	}
	return fmt.Errorf("another program keeps changing %s (%d restorations), so new pods may lack the network or plugins; found: %s; %s. "+
		"The agent restores the file again, after up to %v", o.WriteCNIConfWhenReady, r.count, r.found, remedy, restoreMax)
}

// backoff returns the wait before a restoration after a number of previous ones.
func backoff(previous int) time.Duration {
	if previous == 0 {
		return 0 // the debounce interval has passed
	}
	return min(restoreMin<<min(previous-1, 20), restoreMax)
}
