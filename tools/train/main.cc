// train: trains a model on sharded ranks. Started by a launcher (torchrun,
// srun, mpirun) it is one rank; by hand it starts
// --nproc ranks on this host. Exit status: 0 done, 2 a wrong flag, config or
// input file, 1 anything else.

#include "tools/train/train.h"

int main(int argc, char** argv) { return shardgraph::TrainMain(argc, argv); }
