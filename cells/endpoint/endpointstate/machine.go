package endpointstate

import (
	"github.com/waggle-net/waggle/pkg/tables/endpointstates"
)

type state = endpointstates.State

// unborn is the state of an endpoint without a row.
const unborn state = ""

// progress is the progress of the datapath with the rows of an endpoint.
type progress int

const (
	missing progress = iota // rows are missing
	pending                 // all rows exist, but not all are in the kernel
	done                    // all rows are in the kernel
)

// situation is the input of the state machine.
type situation struct {
	wanted      bool // the endpoint has a row in endpoints
	restored    bool // the row was restored from a state file
	quarantined bool // the endpoint is in quarantine
	progress    progress
	gone        bool // no row of the datapath is left
}

// next returns the state that follows s, or s itself if the state does not change.
func next(s state, in situation) state {
	if !in.wanted {
		return nextUnwanted(s, in)
	}
	switch s {
	case unborn:
		if in.restored {
			return endpointstates.Restoring
		}
		return endpointstates.WaitingForIdentity
	case endpointstates.WaitingForIdentity:
		// Without an identity no row is written, so ready implies an identity and an enforced policy.
		if in.progress == done && !in.quarantined {
			return endpointstates.Ready
		}
	case endpointstates.Restoring:
		if in.progress != missing && !in.quarantined {
			return endpointstates.Regenerating
		}
	case endpointstates.WaitingToRegenerate:
		if in.quarantined {
			return endpointstates.Restoring
		}
		if in.progress != missing {
			return endpointstates.Regenerating
		}
	case endpointstates.Regenerating:
		return nextRegenerating(in)
	case endpointstates.Ready:
		if in.quarantined {
			return endpointstates.Restoring
		}
		if in.progress != done {
			return endpointstates.WaitingToRegenerate
		}
	}
	return s
}

func nextRegenerating(in situation) state {
	switch {
	case in.quarantined:
		return endpointstates.Restoring
	case in.progress == missing:
		return endpointstates.WaitingToRegenerate
	case in.progress == done:
		return endpointstates.Ready
	}
	return endpointstates.Regenerating
}

func nextUnwanted(s state, in situation) state {
	switch s {
	case unborn, endpointstates.NotReady, endpointstates.Disconnected, endpointstates.Invalid:
		return s
	case endpointstates.Disconnecting:
		if in.gone {
			return endpointstates.Disconnected
		}
		return s
	}
	return endpointstates.Disconnecting
}

// path returns the states through which an endpoint passes from s until its state does not change any more. It stops at disconnecting, because other cells
// remove the rows only after they have seen this state.
func path(s state, in situation) []state {
	var through []state
	for {
		to := next(s, in)
		if to == s {
			return through
		}
		through = append(through, to)
		if to == endpointstates.Disconnecting {
			return through
		}
		s = to
	}
}
