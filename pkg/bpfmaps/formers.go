package bpfmaps

// Formers also writes to a twin of the layout of the release before what that has and the present layout has not.
type Formers interface {
	Maps
	// PutFormer writes value as Put does, and former to a twin of the layout of the release before. The key is the same in both layouts.
	PutFormer(name string, key, value, former any) error
}
