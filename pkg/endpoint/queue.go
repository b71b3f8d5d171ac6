package endpoint

// QueueLock is the exclusive lock of the deletion queue. The agent acquires it before it replays the queue. So a plugin finds either that its entry was
// replayed or the socket.
type QueueLock interface {
	// Release releases the lock. The API server calls it when its socket listens; a second call does nothing.
	Release()
}
