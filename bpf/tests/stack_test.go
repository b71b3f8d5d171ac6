package tests

import (
	"fmt"
	"strings"
	"testing"

	"github.com/cilium/ebpf/asm"

	"github.com/waggle-net/waggle/bpf"
)

// Linux 6.1 rounds the frame of each function up to 32 bytes. Newer kernels do not, so loading the programs on these reports less.
func TestPrograms_FitTheStackOfLinux61(t *testing.T) {
	t.Parallel()
	for _, name := range bpf.Objects() {
		spec, err := bpf.Load(name)
		if err != nil {
			t.Fatal(err)
		}
		for program, p := range spec.Programs {
			frames, calls := functions(p.Instructions)
			total, chain := deepest(program, frames, calls)
			t.Attr("stack:"+program, fmt.Sprintf("%d bytes, the budget is %d", total, stackBudget))
			if total > stackBudget {
				t.Errorf("%s: %d bytes of stack in %s, the budget is %d", program, total, strings.Join(chain, " > "), stackBudget)
			}
		}
	}
}

// functions returns the frame size of each function of a program, and its callees.
func functions(all asm.Instructions) (frames map[string]int, calls map[string][]string) {
	frames, calls = map[string]int{}, map[string][]string{}
	var (
		name   string
		copies map[asm.Register]bool // of the frame pointer
	)
	deepen := func(offset int) {
		if offset < 0 {
			frames[name] = max(frames[name], (-offset+31)/32*32)
		}
	}
	for _, i := range all {
		if s := i.Symbol(); s != "" && !strings.HasPrefix(s, "LBB") {
			name, copies = s, map[asm.Register]bool{}
			frames[name] = max(frames[name], 32)
		}
		switch class := i.OpCode.Class(); {
		case i.IsFunctionCall():
			calls[name] = append(calls[name], i.Reference())
		case class.IsLoad() && i.Src == asm.RFP, class.IsStore() && i.Dst == asm.RFP:
			deepen(int(i.Offset))
		case class.IsALU() && i.OpCode.ALUOp() == asm.Mov:
			copies[i.Dst] = i.Src == asm.RFP && i.OpCode.Source() == asm.RegSource
		case class.IsALU() && i.OpCode.ALUOp() == asm.Add && copies[i.Dst]:
			deepen(int(i.Constant))
			copies[i.Dst] = false
		}
	}
	return frames, calls
}

// deepest returns the call chain from a function on that uses the most stack.
func deepest(name string, frames map[string]int, calls map[string][]string) (total int, chain []string) {
	for _, callee := range calls[name] {
		if n, c := deepest(callee, frames, calls); n > total {
			total, chain = n, c
		}
	}
	return total + frames[name], append([]string{fmt.Sprintf("%s (%d)", name, frames[name])}, chain...)
}
