package version

import (
	"fmt"
	"strconv"
)

// generation counts the datapaths that were ever released: it rises with each change of programs, of maps, or of what
// hooks say to one another. Tests make an agent of another generation with
// -X github.com/waggle-net/waggle/pkg/version.generation=<number>.
var generation = "2"

// Generation is the datapath generation of this build, 1 or more. The error means that the build itself is wrong.
func Generation() (uint64, error) {
	n, err := strconv.ParseUint(generation, 10, 32)
	if err != nil || n == 0 {
		return 0, fmt.Errorf("read the datapath generation of this build, %q: not a number above 0; build without -X .generation",
			generation)
	}
	return n, nil
}
