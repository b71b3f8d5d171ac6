package pinnedmaps

import (
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"github.com/cilium/ebpf/btf"
)

// maxDepth limits the nesting of types; BTF of our own objects needs a fraction of it.
const maxDepth = 16

// Format formats bytes of a map according to the type of the key or value: "id=4 flags=1" for a struct, a dotted address for __be32, colons for six bytes.
// Bytes that do not match the type, and bytes without a type, are formatted as hexadecimal digits.
func Format(t btf.Type, data []byte) string {
	if t == nil {
		return hex.EncodeToString(data)
	}
	size, err := btf.Sizeof(t)
	if err != nil || size != len(data) {
		return hex.EncodeToString(data)
	}
	return format(t, data, 0)
}

func format(t btf.Type, data []byte, depth int) string {
	size, err := btf.Sizeof(t)
	if err != nil || size > len(data) || depth > maxDepth {
		return hex.EncodeToString(data)
	}
	data = data[:size]
	switch t := t.(type) {
	case *btf.Typedef:
		if text, ok := networkOrder(t.Name, data); ok {
			return text
		}
		return format(t.Type, data, depth+1)
	case *btf.Struct:
		return members(t.Members, data, depth)
	case *btf.Array:
		return array(t, data, depth)
	case *btf.Int:
		return integer(t, data)
	case *btf.Enum:
		return integer(&btf.Int{Size: t.Size}, data)
	case *btf.Volatile:
		return format(t.Type, data, depth+1)
	case *btf.Const:
		return format(t.Type, data, depth+1)
	}
	return hex.EncodeToString(data)
}

// networkOrder formats the big-endian typedefs: four bytes are an IPv4 address, two are a port.
func networkOrder(typedef string, data []byte) (string, bool) {
	switch {
	case typedef == "__be32" && len(data) == 4:
		return netip.AddrFrom4([4]byte(data)).String(), true
	case typedef == "__be16" && len(data) == 2:
		return strconv.Itoa(int(binary.BigEndian.Uint16(data))), true
	}
	return "", false
}

// members formats the fields of a struct, except fields named pad. If the struct has a field "family" with value 4, the first four bytes of the field "addr"
// are an IPv4 address.
func members(ms []btf.Member, data []byte, depth int) string {
	var out []string
	ipv4 := slices.ContainsFunc(ms, func(m btf.Member) bool {
		at := int(m.Offset.Bytes())
		return m.Name == "family" && at < len(data) && data[at] == 4
	})
	for _, m := range ms {
		from := int(m.Offset.Bytes())
		if m.Name == "pad" || m.BitfieldSize != 0 || from > len(data) {
			continue
		}
		text := format(m.Type, data[from:], depth+1)
		if m.Name == "addr" && ipv4 && len(data) >= from+4 {
			text = netip.AddrFrom4([4]byte(data[from:])).String()
		}
		if strings.Contains(text, "=") {
			text = "{" + text + "}"
		}
		out = append(out, m.Name+"="+text)
	}
	return strings.Join(out, " ")
}

// array formats the byte arrays that maps hold: Ethernet addresses, and IP addresses whose tail may be empty.
func array(t *btf.Array, data []byte, depth int) string {
	size, err := btf.Sizeof(t.Type)
	switch {
	case err != nil || size == 0:
		return hex.EncodeToString(data)
	case size == 1 && len(data) == 6:
		return net.HardwareAddr(data).String()
	case size == 1 && len(data) == 16:
		return netip.AddrFrom16([16]byte(data)).String()
	case size == 1:
		return hex.EncodeToString(data)
	}
	var out []string
	for ; len(data) >= size; data = data[size:] {
		out = append(out, format(t.Type, data[:size], depth+1))
	}
	return "[" + strings.Join(out, " ") + "]"
}

func integer(t *btf.Int, data []byte) string {
	var v uint64
	switch len(data) {
	case 1:
		v = uint64(data[0])
	case 2:
		v = uint64(binary.NativeEndian.Uint16(data))
	case 4:
		v = uint64(binary.NativeEndian.Uint32(data))
	case 8:
		v = binary.NativeEndian.Uint64(data)
	default:
		return hex.EncodeToString(data)
	}
	if t.Encoding != btf.Signed {
		return strconv.FormatUint(v, 10)
	}
	shift := 64 - 8*len(data)
	return strconv.FormatInt(int64(v<<shift)>>shift, 10)
}

// FormatPerCPU formats one value per CPU and omits CPUs whose value is all zero.
func FormatPerCPU(t btf.Type, values [][]byte) string {
	var out []string
	for cpu, v := range values {
		if strings.Trim(string(v), "\x00") != "" {
			out = append(out, fmt.Sprintf("cpu%d{%s}", cpu, Format(t, v)))
		}
	}
	if len(out) == 0 {
		return "0"
	}
	return strings.Join(out, " ")
}
