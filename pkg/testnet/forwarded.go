package testnet

import (
	"fmt"
	"os"
	"strconv"
	"strings"
)

// Forwarded returns the number of packets of a family that the stack of this thread's network namespace has forwarded. Packets that programs redirect are not
// counted.
func Forwarded(ipv6 bool) (uint64, error) {
	name := "/proc/thread-self/net/snmp"
	if ipv6 {
		name += "6"
	}
	text, err := os.ReadFile(name)
	if err != nil {
		return 0, err
	}
	var columns []string // for IPv4: a line of names precedes the line of values
	for line := range strings.Lines(string(text)) {
		fields := strings.Fields(line)
		switch {
		case fields[0] == "Ip6OutForwDatagrams":
			return strconv.ParseUint(fields[1], 10, 64)
		case fields[0] == "Ip:" && columns == nil:
			columns = fields
		case fields[0] == "Ip:":
			for i, column := range columns {
				if column == "ForwDatagrams" {
					return strconv.ParseUint(fields[i], 10, 64)
				}
			}
		}
	}
	return 0, fmt.Errorf("%s has no counter of forwarded packets", name)
}
