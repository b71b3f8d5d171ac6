package pinnedmaps

import (
	"testing"

	"github.com/cilium/ebpf/btf"
)

var (
	u8   = &btf.Int{Name: "u8", Size: 1}
	u16  = &btf.Int{Name: "u16", Size: 2}
	s32  = &btf.Int{Name: "s32", Size: 4, Encoding: btf.Signed}
	u64  = &btf.Int{Name: "u64", Size: 8}
	be32 = &btf.Typedef{Name: "__be32", Type: &btf.Int{Name: "u32", Size: 4}}
	be16 = &btf.Typedef{Name: "__be16", Type: u16}
)

func bytes(n uint32) *btf.Array { return &btf.Array{Index: s32, Type: u8, Nelems: n} }

// key is the key type of the address maps.
var key = &btf.Struct{Name: "addr_key", Size: 20, Members: []btf.Member{
	{Name: "addr", Type: bytes(16)},
	{Name: "family", Type: u8, Offset: 16 * 8},
	{Name: "pad", Type: bytes(3), Offset: 17 * 8},
}}

func TestFormat(t *testing.T) {
	t.Parallel()
	outer := &btf.Struct{Size: 24, Members: []btf.Member{{Name: "key", Type: key}, {Name: "n", Type: s32, Offset: 20 * 8}}}
	ipv4 := append([]byte{10, 0, 1, 7}, make([]byte, 12)...)
	for name, tc := range map[string]struct {
		t    btf.Type
		data []byte
		want string
	}{
		"no type":              {nil, []byte{1, 0xab}, "01ab"},
		"too short":            {u64, []byte{1, 2}, "0102"},
		"unsigned":             {u16, []byte{1, 1}, "257"},
		"signed":               {s32, []byte{0xff, 0xff, 0xff, 0xff}, "-1"},
		"big-endian address":   {be32, []byte{10, 0, 1, 7}, "10.0.1.7"},
		"big-endian port":      {be16, []byte{0, 80}, "80"},
		"ethernet address":     {bytes(6), []byte{2, 0, 0, 0, 0, 1}, "02:00:00:00:00:01"},
		"other bytes":          {bytes(3), []byte{1, 2, 3}, "010203"},
		"array of numbers":     {&btf.Array{Index: s32, Type: u16, Nelems: 2}, []byte{1, 0, 2, 0}, "[1 2]"},
		"IPv4 in an addr_key":  {key, append(ipv4, 4, 0, 0, 0), "addr=10.0.1.7 family=4"},
		"IPv6 in an addr_key":  {key, append([]byte{0xfd, 15: 9}, 6, 0, 0, 0), "addr=fd00::9 family=6"},
		"struct in a struct":   {outer, append(append(ipv4, 4, 0, 0, 0), 5, 0, 0, 0), "key={addr=10.0.1.7 family=4} n=5"},
		"const and volatile":   {&btf.Const{Type: &btf.Volatile{Type: u16}}, []byte{9, 0}, "9"},
		"kind without a print": {&btf.Pointer{Target: u8}, make([]byte, 8), "0000000000000000"},
	} {
		if got := Format(tc.t, tc.data); got != tc.want {
			t.Errorf("%s: got %q, want %q", name, got, tc.want)
		}
	}
}

func TestFormatPerCPU_LeavesOutZeroes(t *testing.T) {
	t.Parallel()
	if got := FormatPerCPU(u16, [][]byte{{0, 0}, {3, 0}}); got != "cpu1{3}" {
		t.Errorf("got %q", got)
	}
	if got := FormatPerCPU(u16, [][]byte{{0, 0}}); got != "0" {
		t.Errorf("got %q", got)
	}
}

// FuzzFormat formats data of any length: Format must not panic.
func FuzzFormat(f *testing.F) {
	f.Add(make([]byte, 20))
	f.Fuzz(func(t *testing.T, data []byte) {
		for _, typ := range []btf.Type{nil, u8, s32, be32, key, bytes(6), bytes(16)} {
			if Format(typ, data) == "" && len(data) > 0 {
				t.Fatalf("%v of %x prints nothing", typ, data)
			}
		}
	})
}
