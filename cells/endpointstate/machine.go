package endpointstate

import (
	"github.com/waggle-net/waggle/pkg/tables/endpointstates"
)

type state = endpointstates.State

// unborn is the state of an endpoint that has no row yet.
const unborn state = ""

// progress is how far the datapath is with an endpoint.
type progress int

const (
	missing progress = iota // rows are still to be written
	pending                 // all rows stand in their tables, not all of them in the kernel
	done                    // the kernel has everything
)

// situation is what decides about the next state.
type situation struct {
	wanted      bool // there is a row in endpoints
	restored    bool // which came from a state file
	quarantined bool // and may not be used
	progress    progress
	gone        bool // no row of the datapath is left
}

// next returns the state that follows, or s itself when it is right as it is.
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
		// Without an identity no row is written, so ready means identified and enforced.
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

// path lists the states that an endpoint goes through from s until it stands still. Disconnecting is always shown for
// one round, because its rows are removed by others who first have to see it.
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
