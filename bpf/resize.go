package bpf

import "slices"

// MapResizeState has one value: which change of the size of [FlowMaps] is under way, and how far it is. Programs that [VariableResizeNumber] names for that change
// read it.
const MapResizeState = "resize_state"

// VariableResizeNumber is the number of the change of size that the programs are loaded for. It begins as 0: for none.
const VariableResizeNumber = "resize_number"

// VariableResizeMaps says which maps of flows get another size in that change, as [ResizeMap] gives their bits. It begins as 0: none.
const VariableResizeMaps = "resize_maps"

// ResizeMap is the bit of one of [FlowMaps] in the variable [VariableResizeMaps], 0 for another map; see resize.h.
func ResizeMap(name string) uint32 {
	if at := slices.Index(FlowMaps(), name); at >= 0 {
		return 1 << at
	}
	return 0
}

// ResizePhase says which of two maps of flows have the entries while programs on hooks are replaced by those for a map of another size; see resize.h.
type ResizePhase uint32

// Phases of a change of size. Between two of them the agent waits until all running programs have ended.
const (
	ResizeNone   ResizePhase = iota // the present map has every entry, and programs look into no other one
	ResizeBefore                    // the former map has every entry, and the present one is empty
	ResizeDuring                    // the former map has every entry, and the present one what was copied or changed since
)

// resizePhases stands in resize.h as RESIZE_PHASES.
const resizePhases = 4

// ResizeState is the value of [MapResizeState] for a change, by its number from 1 to 2^30-1, and its phase.
func ResizeState(number uint32, phase ResizePhase) uint32 { return number*resizePhases + uint32(phase) }

// ReadResizeState returns the number and the phase of a value of [MapResizeState]. Both are 0 when there never was a change.
func ReadResizeState(state uint32) (number uint32, phase ResizePhase) {
	return state / resizePhases, ResizePhase(state % resizePhases)
}

// FlowMaps lists the maps of flows whose size is a flag of the agent. Programs know each of them twice, see [FormerName].
func FlowMaps() []string { return []string{MapCtEst4, MapCtEst6, MapNat4, MapNat6} }

const formerSuffix = "_former"

// FormerName is the name by which programs know what one of [FlowMaps] was before it got another size. Without a change of size it is the same map.
func FormerName(name string) string { return name + formerSuffix }
