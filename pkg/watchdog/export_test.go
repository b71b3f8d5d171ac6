package watchdog

// WatchedTimer exports the wrapper of a timer's function for tests without jobs.
var WatchedTimer = watchedTimer
