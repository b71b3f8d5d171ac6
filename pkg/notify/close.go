// Package notify ends watches of files without waiting for the kernel.
package notify

import "github.com/fsnotify/fsnotify"

// Close ends a watch. It has no effect on nil. It returns before the kernel has freed the watch: that takes an SRCU grace period (fsnotify_destroy_group
// in fs/notify/group.c), which was four seconds on a machine with many containers, and an agent that stops must not wait for it.
func Close(w *fsnotify.Watcher) {
	if w != nil {
		go func() { _ = w.Close() }()
	}
}
