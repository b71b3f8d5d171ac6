package heartbeat

// WatchedTimer is what stands around the function of a timer, for tests without jobs.
var WatchedTimer = watchedTimer
