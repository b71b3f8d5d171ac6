package main

import (
	"fmt"
	"os"

	"github.com/prometheus/procfs"
	"golang.org/x/sys/unix"
)

// unmapProgram unmaps the pages of the program that cannot be written: code and constants. The kernel maps those that are in use again, from its page cache;
// an access costs as much as the first one after the start. The code of the start is a third of the memory of an agent in a small cluster, see RssFile in
// proc(5). See MADV_DONTNEED in madvise(2).
func unmapProgram() error {
	program, err := os.Executable()
	if err != nil {
		return fmt.Errorf("find the program: %w", err)
	}
	self, err := procfs.Self()
	if err != nil {
		return err
	}
	mappings, err := self.ProcMaps()
	if err != nil {
		return fmt.Errorf("read the mappings of the process: %w", err)
	}
	for _, m := range mappings {
		if m.Pathname != program || m.Perms.Write {
			continue
		}
		if _, _, errno := unix.Syscall(unix.SYS_MADVISE, m.StartAddr, m.EndAddr-m.StartAddr, unix.MADV_DONTNEED); errno != 0 {
			return fmt.Errorf("unmap the pages of %s: %w", program, errno)
		}
	}
	return nil
}
