// Package notify ends watches of files without waiting for the kernel.
package notify

import "io"

// Close ends a watch: a watcher of fsnotify, or a file of inotify. It has no effect on nil. It returns before the kernel has freed the watch: that takes an SRCU
// grace period (fsnotify_destroy_group in fs/notify/group.c), which was four seconds on a machine with many containers, and an agent that stops must not wait for it.
func Close[W interface {
	comparable
	io.Closer
}](w W) {
	var none W
	if w != none {
		go func() { _ = w.Close() }()
	}
}
