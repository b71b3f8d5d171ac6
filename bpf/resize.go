package bpf

import "slices"

// MapResizeState has one value: the number and the phase of the current resize of [FlowMaps]. Only programs that [VariableResizeNumber] assigns to that
// resize read it.
const MapResizeState = "resize_state"

// VariableResizeNumber is the number of the resize for which the programs are loaded. Default 0: none.
const VariableResizeNumber = "resize_number"

// VariableResizeMaps is the set of maps of flows with another size in that resize, as bits of [ResizeMap]. Default 0: none.
const VariableResizeMaps = "resize_maps"

// ResizeMap returns the bit of one of [FlowMaps] in [VariableResizeMaps], 0 for another map; see resize.h.
func ResizeMap(name string) uint32 {
	if at := slices.Index(FlowMaps(), name); at >= 0 {
		return 1 << at
	}
	return 0
}

// ResizePhase is the distribution of entries between the previous and the new map of flows while programs on hooks are replaced by programs for a map of
// another size; see resize.h.
type ResizePhase uint32

// Phases of a resize. Between two phases the agent waits until all running programs have ended.
const (
	ResizeNone   ResizePhase = iota // the current map has every entry, and programs use no other map
	ResizeBefore                    // the previous map has every entry, and the current one is empty
	ResizeDuring                    // the previous map has every entry, and the current one the entries that were copied or changed since
)

// resizePhases is RESIZE_PHASES in resize.h.
const resizePhases = 4

// ResizeState returns the value of [MapResizeState] for a resize, by its number from 1 to 2^30-1, and its phase.
func ResizeState(number uint32, phase ResizePhase) uint32 { return number*resizePhases + uint32(phase) }

// ReadResizeState returns the number and the phase of a value of [MapResizeState]. Both are 0 if there was never a resize.
func ReadResizeState(state uint32) (number uint32, phase ResizePhase) {
	return state / resizePhases, ResizePhase(state % resizePhases)
}

// FlowMaps lists the maps of flows whose size is a flag of the agent. Programs have two names for each of them, see [PreviousName].
func FlowMaps() []string { return []string{MapCtEst4, MapCtEst6, MapNat4, MapNat6} }

const previousSuffix = "_previous"

// PreviousName returns the programs' name of the previous map of one of [FlowMaps] in a resize. Without a resize it is the same map.
func PreviousName(name string) string { return name + previousSuffix }
