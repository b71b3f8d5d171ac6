package version

import (
	"fmt"
	"strconv"
)

// generation is the number of released datapaths. It rises with each change of programs, of maps, or of data that hooks pass to one another. Tests build an
// agent of another generation with -X github.com/waggle-net/waggle/pkg/version.generation=<number>.
var generation = "2"

// Generation returns the datapath generation of this build, 1 or more. An error means that the build set an invalid generation.
func Generation() (uint64, error) {
	n, err := strconv.ParseUint(generation, 10, 32)
	if err != nil || n == 0 {
		return 0, fmt.Errorf("read the datapath generation of this build, %q: not a number above 0; build without -X .generation",
			generation)
	}
	return n, nil
}
