package endpoint

// QueueLock is the exclusive lock of the deletion queue. It is held from before the queue is replayed, so that a plugin
// either finds its entry replayed or finds the socket.
type QueueLock interface {
	// Release gives the lock back. Whoever serves the API calls it once its socket listens; a second call does nothing.
	Release()
}
