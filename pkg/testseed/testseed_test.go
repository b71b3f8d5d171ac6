package testseed

import "testing"

func TestSeed_FollowsTheEnvironment(t *testing.T) {
	t.Setenv(Env, "")
	def := Seed(t)
	t.Setenv(Env, "7")
	seven := Seed(t)
	if def == seven || Seed(t) != seven {
		t.Errorf("seeds %d, %d and %d: want another seed for another %s, and the same for the same", def, seven, Seed(t), Env)
	}
	t.Setenv(Env, "1")
	if Seed(t) != def {
		t.Errorf("%s=1 gives %d, want %d, the default", Env, Seed(t), def)
	}
}

func TestSeed_DiffersBetweenTests(t *testing.T) {
	t.Setenv(Env, "7")
	seeds := map[uint64]string{}
	for _, name := range []string{"a", "b"} {
		t.Run(name, func(t *testing.T) {
			if other, ok := seeds[Seed(t)]; ok {
				t.Errorf("the seed of %s again", other)
			}
			seeds[Seed(t)] = t.Name()
		})
	}
}
